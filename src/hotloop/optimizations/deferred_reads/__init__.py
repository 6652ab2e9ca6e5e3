"""A what-if, which is never kept: a script that decides on a value would decide on an old one. Run on an H100, torch 2.11."""

from __future__ import annotations

from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, only_on


def _values(census: Census) -> tuple[Any, ...]:
    reads = any(call.what in ("item", "float") for call in census.syncs)
    return (True,) if reads or "syncs" not in census.seen else ()


DEFERRED_READS = Optimization(
    name="deferred_reads",
    summary="What-if: loss.item() gives the value of some steps ago without waiting for the device; shows what "
    "reading in every step costs.",
    parity_class="changes_training",
    settings=(True,),
    values_for=_values,
    why_not=only_on("cuda", "on a CPU a value is there when it is read: nothing waits"),
    answers=("HL204",),
    source_form=(
        "total += loss.detach()\n"
        "if step % 100 == 0:\n"
        "    print(total.item() / 100)\n"
        "    total.zero_()"
    ),
    leaves="a CPU; whole numbers; what torch itself reads",
    what_if=True,
    risks="A script that decides on the value (early stopping, skipping batches) decides on an old one.",
)
