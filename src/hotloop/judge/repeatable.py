"""Detects whether a script's losses repeat, and up to which step: without that nothing shows what a change does."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hotloop.core.step import StepRecord
from hotloop.judge.parity import MAX_ENVELOPE, MIN_STEPS


def why_not_repeatable(first: Sequence[StepRecord], second: Sequence[StepRecord]) -> str | None:
    """Why two runs of the same code cannot tell whether a third one learned the same; `None`: they can."""
    one = {record.step: record.loss for record in first if record.loss is not None}
    other = {record.step: record.loss for record in second if record.loss is not None}
    steps = sorted(set(one) & set(other))
    if not steps:
        return (
            "no loss was seen: it never went backward from a single number with `Tensor.backward`"
        )
    if len(steps) < MIN_STEPS:
        return f"losses of {len(steps)} steps were seen, at least {MIN_STEPS} are needed"
    steps = steps[:MIN_STEPS]
    if not all(math.isfinite(one[step]) and math.isfinite(other[step]) for step in steps):
        return f"its loss is not a number within the first {MIN_STEPS} steps"
    parts = [
        (step, abs(one[step] - other[step]) / _scale(one[step], other[step])) for step in steps
    ]
    largest = max(part for _, part in parts)
    if largest <= MAX_ENVELOPE:
        return None
    start = next(step for step, part in parts if part > 0)
    if start == steps[0]:
        where = (
            "from the first step on, so something that no seed decides enters it: the time, a seed that "
            "is drawn anew, the order of threads or files"
        )
    else:
        where = f"equal up to step {start - 1}, apart from step {start} on"
    return f"two unchanged runs, seeded alike, part by {largest:.1e} within {MIN_STEPS} steps ({where})"


def _scale(one: float, other: float) -> float:
    return max(abs(one), abs(other), 1e-12)
