"""From `auto` to values this machine can use, before training starts."""

from __future__ import annotations

from hotloop.core.errors import UsageError
from hotloop.core.settings import Settings
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CONFIGURED


def resolve(settings: Settings, machine: Machine) -> tuple[Settings, tuple[str, ...]]:
    """Settings without `auto`, and a note for everything that was asked for and cannot be had.

    In the catalogue's order, so that a technique sees what those before it became. A value that the machine
    cannot use raises `UsageError`, unless the technique says that it is only slow or is left out.
    """
    notes: list[str] = []
    for optimization in CONFIGURED.values():
        values = settings.config.flat()
        key, value = optimization.key, values[optimization.key]
        if value == "auto":
            assert (
                optimization.choose is not None
            )  # `auto` is a value of configured techniques alone
            choice = optimization.choose(machine, values)
            settings = settings.with_values({key: choice.value}, origin=f"detected: {choice.why}")
            if optimization.falls_back and choice.value == optimization.off:
                notes.append(f"{key} is off: {choice.why}")
            continue
        reason = optimization.why_not(machine, value, values)
        if reason is None:
            continue
        if optimization.falls_back:
            notes.append(f"{key} is off: {reason}")
            settings = settings.with_values({key: optimization.off}, origin=f"detected: {reason}")
        elif optimization.is_only_slow(value):
            notes.append(f"{key}={value}: {reason}, expect it to be slow")
        else:
            raise UsageError(
                f"`{key}: {value}` cannot be used: {reason}",
                where=settings.place(key),
                do=f"set it to `auto` or `{optimization.off}`",
            )
    if settings.config.train.num_threads == "auto":
        settings = settings.with_values(
            {"train.num_threads": machine.num_threads},
            origin="detected: the CPUs this process may use",
        )
    return settings, tuple(notes)
