"""Processes that train together: who computes how long and who is waited for, and what one of them does not show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from hotloop.core.judgement import Finding, RankComparison, RankTime
from hotloop.core.measurement import Measurement
from hotloop.core.step import StepRecord
from hotloop.judge.attribute import under_way
from hotloop.judge.findings import finding
from hotloop.judge.judged_run import JudgedRun, judged_run

STANDS_OUT = 0.05
"""Excess from which on a rank is called slower, as for the other findings."""
FEWEST_STEPS = 5
"""Steps below which nobody is called slower: one disturbance would decide."""
SAME_STEP = 0.1
"""Relative difference of their steps up to which ranks are taken to end them together."""
INSIDE = ("backward", "grad_sync")

Seconds = Mapping[int, Sequence[float]]
"""By rank, those of each step."""


def compare_ranks(
    records: Mapping[int, Sequence[StepRecord]], *, on_cpu: bool = False, in_backward: bool = False
) -> RankComparison | None:
    """Ranks compared over the steps that all of them made without a tag since the last start.

    `computing = wall - grad_sync`: every rank ends a step together with the others, so that wall times
    say nothing; what differs is how long each waits in `grad_sync` for the slowest one. A rank stands
    out when it computes 5 % longer than the mean of the others, in the median step, and is the slowest
    in most steps. `None` for fewer than two ranks whose phases are known.
    on_cpu: where no waiting was seen, or most is `in_backward`, as of DistributedDataParallel, what lies outside of the
    pass backward is compared; a GPU's host never waits there.
    """
    # That of the newest processes: before a resume there may have been others.
    first = records[min(records)] if records else ()
    start = max((record.step for record in first if "resumed" in record.tags), default=0)
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
    computing = {rank: [seen[step][0] for step in steps] for rank, seen in times.items()}
    waiting = {rank: [seen[step][1] for step in steps] for rank, seen in times.items()}
    each = tuple(RankTime(rank, median(computing[rank]), median(waiting[rank])) for rank in times)
    if any(map(any, waiting.values())) and not (on_cpu and in_backward):
        return _compare(each, computing)
    if on_cpu:
        return _outside_backward(records, list(times), steps)
    return RankComparison(
        each,
        len(steps),
        reason="waiting is not told from computing here: on a GPU the host does not see it",
    )


def _outside_backward(
    records: Mapping[int, Sequence[StepRecord]], ranks: Sequence[int], steps: Sequence[int]
) -> RankComparison:
    """Compared by what they do outside of the pass backward, in which they wait for each other.

    `excess = outside - mean of the others' outside`; the others wait as long, if all go backward for
    as long. A rank stands out where that is 5 % of the step, in the median step and in most.
    """
    kept = {rank: {r.step: r for r in records[rank]} for rank in ranks}
    wall = {rank: [kept[rank][step].wall_s for step in steps] for rank in ranks}
    backward = {
        rank: [sum(kept[rank][step].host.get(each, 0.0) for each in INSIDE) for step in steps]
        for rank in ranks
    }
    outside = {
        rank: [whole - part for whole, part in zip(wall[rank], backward[rank])] for rank in ranks
    }
    each = tuple(RankTime(rank, median(outside[rank]), 0.0) for rank in ranks)
    typical = [median(seconds) for seconds in wall.values()]
    if not any(map(any, backward.values())) or max(typical) > (1 + SAME_STEP) * min(typical):
        return RankComparison(
            each, len(steps), reason="no waiting for each other was seen", hidden=True
        )
    return _compare(each, outside, wall)


def _compare(
    each: tuple[RankTime, ...], seconds: Seconds, wall: Seconds | None = None
) -> RankComparison:
    """Name the slowest if it stands out.

    wall: whole steps, where waiting was not seen: the excess is a share of them, else of the others' mean.
    """
    slowest = max(seconds, key=lambda rank: median(seconds[rank]))
    at_steps = zip(*(times for rank, times in seconds.items() if rank != slowest))
    others = [sum(times) / len(times) for times in at_steps]
    excess = median(
        (own - usual) / whole if whole else math.inf
        for own, usual, whole in zip(seconds[slowest], others, wall[slowest] if wall else others)
    )
    longest = (max(times) for times in zip(*seconds.values()))
    num_slowest = sum(own == most for own, most in zip(seconds[slowest], longest))
    is_in_most = num_slowest > 0.5 * len(others) and len(others) >= FEWEST_STEPS
    stands_out = is_in_most and excess >= STANDS_OUT
    return RankComparison(
        each,
        len(others),
        slowest=slowest if stands_out else None,
        slower_by=excess if stands_out else None,
        hidden=bool(wall),
    )


def _times(records: Sequence[StepRecord]) -> dict[int, tuple[float, float]]:
    """`(computing, waiting)` seconds of each step that carries phases and no tag."""
    return {
        r.step: (r.wall_s - r.host.get("grad_sync", 0.0), r.host.get("grad_sync", 0.0))
        for r in records
        if r.host and not r.tags and r.wall_s > 0
    }


OWN_CODE = ("HL107", "HL801")
"""Findings about one process's own lines, of which the others see nothing but that they wait."""


def hides_waiting(run: JudgedRun) -> bool:
    """Whether several processes train together and no waiting for each other was seen.

    DistributedDataParallel sends gradients and waits for them inside the pass backward: what a rank
    computes and what it waits for a slower one is one phase then, unless torch's profiler saw it send.
    """
    if not run.is_foreign or (run.census.num_ranks or 1) < 2:
        return False
    if run.census.profiled_communication_s is not None:
        return False
    return not any(
        r.host.get("grad_sync") or (r.device or {}).get("communication")
        for r in under_way(run.measurement.records)
    )


def with_other_ranks(
    findings: Sequence[Finding], others: Mapping[int, Measurement]
) -> tuple[Finding, ...]:
    """The findings; of a rank that spends more in its own code than the judged one, its line instead."""
    found = list(findings)
    runs = {rank: judged_run(measurement) for rank, measurement in others.items()}
    runs = {rank: run for rank, run in runs.items() if run.has_phases}
    for code in OWN_CODE:
        best = next((f for f in found if f.code == code), None)
        for rank, run in runs.items():
            other = finding(code, run)
            if other is not None and (best is None or other.gain_at_most > best.gain_at_most):
                best = replace(
                    other,
                    evidence={"rank": rank, **other.evidence},
                    advice=f"On rank {rank}: {other.advice[0].lower()}{other.advice[1:]}",
                )
        if best is not None:
            found = [f for f in found if f.code != code] + [best]
    return tuple(found)
