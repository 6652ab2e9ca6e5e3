"""Every technique, by name, and what `auto` becomes on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, get_args

from hotloop import optimizations
from hotloop.core.census import Census
from hotloop.core.errors import UsageError
from hotloop.core.judgement import ParityClass
from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Optimization, live_in

if TYPE_CHECKING:  # it needs more than the standard library, and foreign processes import this
    from hotloop.core.settings import C, Settings


def _found() -> dict[str, Optimization]:
    """The one `Optimization` of every folder beside this file, each after those that it names in `after`."""
    folders = [each.name for each in iter_modules(optimizations.__path__) if each.ispkg]
    modules = [import_module(f"{optimizations.__name__}.{each}") for each in folders]
    found = {
        each.name: each
        if each.live_form or each.no_live_form
        else replace(each, live_form=live_in(module.__name__))
        for module in modules
        for each in vars(module).values()
        if isinstance(each, Optimization)
    }
    return {
        name: found[name]
        for name in TopologicalSorter({n: o.after for n, o in found.items()}).static_order()
    }


CATALOGUE: dict[str, Optimization] = _found()
"""In the order in which `auto` is resolved: a later one may look at an earlier one's value."""

CONFIGURED: dict[str, Optimization] = {name: each for name, each in CATALOGUE.items() if each.key}
"""Those that hotloop's own trainer has a key for."""


_SEVERITY: tuple[ParityClass, ...] = get_args(ParityClass)
"""Each may change all that those before it may; `other_draws` is held to theirs with its random numbers held fixed."""


def parity_class_of(
    config: Mapping[str, Any], *, baseline: Mapping[str, Any] | None = None
) -> ParityClass:
    """The strongest class among the techniques in which two resolved flat configs differ.

    Without a baseline, from everything off. Each technique counts by the stronger of its classes on
    the two sides.
    """
    if baseline is None:
        baseline = {**config, **{o.key: o.off for o in CONFIGURED.values()}}
    classes = [
        o.parity_class_on(side)
        for o in CONFIGURED.values()
        if config[o.key] != baseline[o.key]
        for side in (config, baseline)
    ]
    return max(classes, key=_SEVERITY.index, default="bitwise")


def parity_of_live(
    techniques: Sequence[Optimization], matmul_dtypes: Sequence[str] = ()
) -> ParityClass:
    """The strongest class among techniques that are put into a foreign script.

    matmul_dtypes: those of its products, as its census has them. Where one is short, what rounds sums otherwise is
    rounded to its digits, as `Optimization.parity_class_on` says of our own trainer.
    """
    classes = [each.parity_class for each in techniques]
    strongest: ParityClass = max(classes, key=_SEVERITY.index, default="bitwise")
    if strongest == "reduction_order" and not _SHORT.isdisjoint(matmul_dtypes):
        return "reduced_precision"
    return strongest


def changes_batch_rng(techniques: Sequence[Optimization], census: Census | None) -> bool:
    """Whether one of them has batches draw other random numbers in a script that was seen so: `other_draws`."""
    found = [each.other_draws_in for each in techniques]
    return census is not None and any(is_seen is not None and is_seen(census) for is_seen in found)


def reshapes(techniques: Sequence[Optimization]) -> bool:
    """Whether batches have other shapes with one of them, in which dropout draws other numbers: `other_draws`."""
    return any(each.reshapes for each in techniques)


_SHORT = frozenset({"bfloat16", "float16", "tf32"})
"""Types of products with fewer digits than float32, by their names in a census."""


def resolve(settings: Settings[C], machine: Machine) -> tuple[Settings[C], tuple[str, ...]]:
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
            if optimization.falls_back(machine) and choice.value == optimization.off:
                notes.append(f"{key} is off: {choice.why}")
            continue
        reason = optimization.why_not(machine, value, values)
        if reason is None:
            continue
        if optimization.falls_back(machine):
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
