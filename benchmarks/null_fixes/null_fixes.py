"""Fixes that do nothing and say that they were applied: whatever the doctor makes of them is an error.

Those of `TOGGLED` can be turned on and off as well, which does nothing either.
"""

from __future__ import annotations

from typing import Any

from hotloop.optimizations.optimization import Optimization


def _nothing(value: Any, report: Any) -> None:
    report.applied("nothing")


def _nothing_switched(value: Any, report: Any) -> None:
    report.applied("nothing", toggle=lambda on: None)


def _five(prefix: str, live_form: Any) -> dict[str, Optimization]:
    return {
        name: Optimization(
            name=name,
            summary="Does nothing.",
            parity_class="bitwise",
            observed=lambda census, value: None,
            settings=(True,),
            live_form=live_form,
        )
        for name in (f"{prefix}_{number}" for number in range(1, 6))
    }


NULL_FIXES = _five("null", _nothing)
TOGGLED = _five("switched", _nothing_switched)
