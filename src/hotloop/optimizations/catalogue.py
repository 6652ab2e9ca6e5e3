"""Every technique, by name, and what `auto` becomes on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.judgement import ParityClass
from hotloop.hardware.machine import Machine
from hotloop.optimizations.attention import ATTENTION
from hotloop.optimizations.clipping import CLIPPING
from hotloop.optimizations.compiling import COMPILE
from hotloop.optimizations.fused_optimizer import FUSED_OPTIMIZER
from hotloop.optimizations.optimization import Choice, Optimization
from hotloop.optimizations.precision import PRECISION

CATALOGUE: dict[str, Optimization] = {
    optimization.name: optimization
    for optimization in (PRECISION, COMPILE, ATTENTION, FUSED_OPTIMIZER, CLIPPING)
}
"""In the order in which `auto` is resolved: a later one may look at an earlier one's value."""


def choose_auto(machine: Machine, config: Mapping[str, Any]) -> dict[str, Choice]:
    """A choice for every key of the catalogue that is `auto` in the flat config."""
    values = dict(config)
    chosen: dict[str, Choice] = {}
    for optimization in CATALOGUE.values():
        if values[optimization.key] == "auto":
            choice = optimization.choose(machine, values)
            chosen[optimization.key] = choice
            values[optimization.key] = choice.value
    return chosen


_SEVERITY: tuple[ParityClass, ...] = (
    "bitwise",
    "reduction_order",
    "reduced_precision",
    "changes_training",
)


def parity_class_of(config: Mapping[str, Any]) -> ParityClass:
    """The strongest class among the techniques that a resolved flat config turns on."""
    classes = [o.parity_class for o in CATALOGUE.values() if config[o.key] != o.off]
    return max(classes, key=_SEVERITY.index, default="bitwise")
