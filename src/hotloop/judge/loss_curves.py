"""Whole loss curves: whether a script's losses repeat, and how low they are once a run has learnt something.

Without the first nothing shows what a change does. What rounds products may show only in the second: step by step
nothing can be compared that late, because rounding alone parts the losses of most scripts by the hundredth step. The
mean over the last losses can, because both runs see the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from hotloop.core.step import StepRecord
from hotloop.judge.parity import MAX_ENVELOPE, MIN_STEPS, WINDOW, loss_table, window_means


def why_not_repeatable(first: Sequence[StepRecord], second: Sequence[StepRecord]) -> str | None:
    """Why two runs of the same code cannot tell whether a third one learned the same; `None`: they can."""
    steps, (one,), (other,) = loss_table([first], [second])
    if not steps:
        return (
            "no loss was seen: it never went backward from a single number with `Tensor.backward`"
        )
    if len(steps) < MIN_STEPS:
        return f"losses of {len(steps)} steps were seen, at least {MIN_STEPS} are needed"
    losses = list(zip(one, other))[:MIN_STEPS]
    if not all(math.isfinite(loss) for pair in losses for loss in pair):
        return f"its loss is not a number within the first {MIN_STEPS} steps"
    parts = [abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in losses]
    largest = max(parts)
    if largest <= MAX_ENVELOPE:
        return None
    start = next(step for step, part in zip(steps, parts) if part > 0)
    if start == steps[0]:
        where = (
            "from the first step on, so something that no seed decides enters it: the time, a seed that "
            "is drawn anew, the order of threads or files"
        )
    else:
        where = f"equal up to step {start - 1}, apart from step {start} on"
    return f"two unchanged runs, seeded alike, part by {largest:.1e} within {MIN_STEPS} steps ({where})"


SHARE = 0.8
"""The share of what the loss falls in the run that was seen: a comparison goes that far."""
MAX_LEARNT_STEPS = 600
WORSE = 0.05
"""Share of that fall by which the candidate's loss may end higher."""


def learnt_after(records: Sequence[StepRecord]) -> int | None:
    """Steps in which the loss falls by `SHARE` of what it falls at all; `None`: it was not seen to fall."""
    losses = [record.loss for record in records if record.loss is not None]
    if len(losses) < 2 * WINDOW or not all(map(math.isfinite, losses)):
        return None
    means = window_means(losses)
    falls = means[0] - min(means)
    if falls < 2 * _scatter(losses):
        return None
    reached = next(at for at, mean in enumerate(means) if means[0] - mean >= SHARE * falls)
    return min(reached + WINDOW, MAX_LEARNT_STEPS)


def compare_levels(
    baseline: Sequence[StepRecord], candidate: Sequence[StepRecord]
) -> tuple[bool, str]:
    """Whether the candidate has come as far, and from which loss to which both went."""
    steps, (base,), (other,) = loss_table([baseline], [candidate])
    if len(steps) < 2 * WINDOW:
        return True, f"only {len(steps)} losses of a longer run were seen"
    ours, theirs = window_means(base), window_means(other)
    went = (
        f"over {len(steps)} steps the loss went from {ours[0]:.4g} to {ours[-1]:.4g} as it is, and to "
        f"{theirs[-1]:.4g} with it"
    )
    falls = ours[0] - ours[-1]
    if not math.isfinite(theirs[-1]):
        return False, went
    allowed = max(WORSE * falls, _scatter(base) / WINDOW**0.5)
    return theirs[-1] - ours[-1] <= allowed, went


def _scatter(losses: Sequence[float]) -> float:
    """The scatter of one loss from the next, which no learning is part of; of finite ones."""
    known = filter(math.isfinite, losses)
    return median([abs(after - before) for before, after in pairwise(known)] or [0.0])
