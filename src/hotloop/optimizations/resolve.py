"""From `auto` to values this machine can use, before training starts."""

from __future__ import annotations

from hotloop.core.errors import UsageError
from hotloop.core.settings import Settings
from hotloop.hardware.machine import Machine
from hotloop.optimizations.catalogue import CATALOGUE, choose_auto


def resolve(settings: Settings, machine: Machine) -> tuple[Settings, tuple[str, ...]]:
    """Settings without `auto`, and a note for everything that was asked for and cannot be had.

    Compile falls back to eager with a note, since the result is the same; any other value the machine
    cannot use raises `UsageError`, except an emulated dtype, which works and is only slow: a note.
    """
    notes: list[str] = []
    for name, optimization in CATALOGUE.items():
        value = settings.config.flat()[optimization.key]
        if value == "auto":
            continue
        reason = optimization.why_not(machine, value)
        if reason is None:
            continue
        if name == "compile":
            notes.append(f"train.compile is off: {reason}")
            settings = settings.with_values({optimization.key: False}, origin=f"detected: {reason}")
        elif "emulated" in reason:
            notes.append(f"{optimization.key}={value}: {reason}, expect it to be slow")
        else:
            raise UsageError(
                f"`{optimization.key}: {value}` cannot be used: {reason}",
                where=settings.origin(optimization.key),
                do=f"set it to `auto` or `{optimization.off}`",
            )
    for key, choice in choose_auto(machine, settings.config.flat()).items():
        settings = settings.with_values({key: choice.value}, origin=f"detected: {choice.why}")
        if key == "train.compile" and not choice.value:
            notes.append(f"train.compile is off: {choice.why}")
    if settings.config.train.num_threads == "auto":
        settings = settings.with_values(
            {"train.num_threads": machine.num_threads},
            origin="detected: the CPUs this process may use",
        )
    return settings, tuple(notes)
