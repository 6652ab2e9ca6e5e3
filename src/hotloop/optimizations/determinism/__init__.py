"""A what-if, which is not kept: the user asked for runs that repeat to the bit. Run on an H100, torch 2.11."""

from __future__ import annotations

from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, seen_switch

SWITCHES = ("use_deterministic_algorithms", "cudnn.deterministic")


def _values(census: Census) -> tuple[Any, ...]:
    on_device = not (census.device or "cpu").startswith("cpu")
    return (False,) if on_device and census.has_switch(*SWITCHES) else ()


DETERMINISM = Optimization(
    name="determinism",
    summary="What-if: algorithms that may sum in any order; shows what asking for deterministic ones costs.",
    parity_class="reduction_order",
    settings=(False,),
    values_for=_values,
    needs="deterministic algorithms on a GPU",
    observed=seen_switch(*SWITCHES),
    answers=("HL808",),
    source_form="torch.use_deterministic_algorithms(False)",
    leaves="a CPU, where only filling memory costs",
    what_if=True,
    risks="Two runs from the same seed differ in the last bits of their losses.",
)
