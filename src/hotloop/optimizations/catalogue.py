"""Every technique, by name, and what `auto` becomes on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.judgement import ParityClass
from hotloop.optimizations.attention import ATTENTION
from hotloop.optimizations.clipping import CLIPPING
from hotloop.optimizations.compiling import COMPILE
from hotloop.optimizations.fused_optimizer import FUSED_OPTIMIZER
from hotloop.optimizations.optimization import Optimization
from hotloop.optimizations.precision import PRECISION

CATALOGUE: dict[str, Optimization] = {
    optimization.name: optimization
    for optimization in (PRECISION, COMPILE, ATTENTION, FUSED_OPTIMIZER, CLIPPING)
}
"""In the order in which `auto` is resolved: a later one may look at an earlier one's value."""


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
