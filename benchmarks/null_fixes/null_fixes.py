"""Fixes that do nothing and say that they were applied: whatever the doctor makes of them is an error."""

from __future__ import annotations

from typing import Any

from hotloop.optimizations.optimization import Optimization


def _nothing(value: Any, report: Any) -> None:
    report.applied("nothing")


NULL_FIXES = {
    name: Optimization(
        name=name,
        summary="Does nothing.",
        parity_class="bitwise",
        observed=lambda census, value: None,
        settings=(True,),
        live_form=_nothing,
    )
    for name in (f"null_{number}" for number in range(1, 6))
}
