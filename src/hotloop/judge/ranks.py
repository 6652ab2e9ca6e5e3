"""Processes that train together, held against each other: who computes how long, and who is waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hotloop.core.judgement import RankComparison, RankTime
from hotloop.core.step import StepRecord

STANDS_OUT = 0.05
"""Excess from which on a rank is called slower, as for the other findings."""
FEWEST_STEPS = 5
"""Steps below which nobody is called slower: one disturbance would decide."""


SAME_STEP = 0.1
"""Relative difference of their steps up to which ranks are taken to end them together."""


def compare_ranks(
    records: Mapping[int, Sequence[StepRecord]], *, on_cpu: bool = False
) -> RankComparison | None:
    """Ranks compared over the steps that all of them made without a tag since the last start.

    `computing = wall - grad_sync`: every rank ends a step together with the others, so that wall times
    say nothing; what differs is how long each waits in `grad_sync` for the slowest one. A rank stands
    out when it computes 5 % longer than the mean of the others, in the median step, and is the slowest
    in most steps. `None` for fewer than two ranks whose phases are known.
    on_cpu: of DistributedDataParallel on a CPU, which waits inside the pass backward, what lies outside
    of it is compared; a GPU's host never waits there.
    """
    start = _start_of(records[min(records)]) if records else 0
    times = {
        rank: _times([r for r in kept if r.step >= start])
        for rank, kept in records.items()
        if any(r.step >= start and r.host for r in kept)
    }
    if len(times) < 2:
        return None
    steps = sorted(set.intersection(*(set(each) for each in times.values())))
    if not steps:
        return RankComparison((), 0, reason="no step was made by all of them without a disturbance")
    computing = np.array([[times[rank][step][0] for step in steps] for rank in times])
    waiting = np.array([[times[rank][step][1] for step in steps] for rank in times])
    each = tuple(
        RankTime(rank, float(np.median(computing[row])), float(np.median(waiting[row])))
        for row, rank in enumerate(times)
    )
    if not waiting.any() and on_cpu:
        return _outside_backward(records, list(times), steps)
    if not waiting.any():
        return RankComparison(
            each,
            len(steps),
            reason="waiting is not told from computing here: on a GPU the host does not see it",
        )
    row = int(np.argmax(np.median(computing, axis=1)))
    others = np.delete(computing, row, axis=0).mean(axis=0)
    excess = float(np.median(computing[row] / others)) - 1
    most = float(np.mean(computing.argmax(axis=0) == row)) > 0.5
    stands_out = len(steps) >= FEWEST_STEPS and most and excess >= STANDS_OUT
    return RankComparison(
        each,
        len(steps),
        slowest=each[row].rank if stands_out else None,
        slower_by=excess if stands_out else None,
    )


def _outside_backward(
    records: Mapping[int, Sequence[StepRecord]], ranks: Sequence[int], steps: Sequence[int]
) -> RankComparison:
    """Compared by what they do outside of the pass backward, in which they wait for each other.

    `excess = outside - mean of the others' outside`; the others wait as long, if all go backward for
    as long. A rank stands out where that is 5 % of the step, in the median step and in most.
    """
    kept = {rank: {r.step: r for r in records[rank]} for rank in ranks}
    wall = np.array([[kept[rank][step].wall_s for step in steps] for rank in ranks])
    backward = np.array(
        [[kept[rank][step].host.get("backward", 0.0) for step in steps] for rank in ranks]
    )
    outside = wall - backward
    each = tuple(
        RankTime(rank, float(np.median(outside[row])), 0.0) for row, rank in enumerate(ranks)
    )
    typical = np.median(wall, axis=1)
    if not backward.any() or typical.max() > (1 + SAME_STEP) * typical.min():
        return RankComparison(
            each, len(steps), reason="no waiting for each other was seen", hidden=True
        )
    row = int(np.argmax(np.median(outside, axis=1)))
    excess = outside[row] - np.delete(outside, row, axis=0).mean(axis=0)
    share = float(np.median(excess / wall[row]))
    most = float(np.mean(outside.argmax(axis=0) == row)) > 0.5
    stands_out = len(steps) >= FEWEST_STEPS and most and share >= STANDS_OUT
    return RankComparison(
        each,
        len(steps),
        slowest=ranks[row] if stands_out else None,
        slower_by=share if stands_out else None,
        hidden=True,
    )


def _start_of(records: Sequence[StepRecord]) -> int:
    """The first step of the newest processes: before a resume there may have been others."""
    return max((record.step for record in records if "resumed" in record.tags), default=0)


def _times(records: Sequence[StepRecord]) -> dict[int, tuple[float, float]]:
    """`(computing, waiting)` seconds of each step that carries phases and no tag."""
    return {
        r.step: (r.wall_s - r.host.get("grad_sync", 0.0), r.host.get("grad_sync", 0.0))
        for r in records
        if r.host and not r.tags and r.wall_s > 0
    }
