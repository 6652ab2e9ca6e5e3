"""What the interval of a comparison allows to be claimed, and the sentences that say why, or why not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.judgement import JudgedSteps, Outcome
from hotloop.core.measurement import Measurement
from hotloop.judge.estimate import NO_SCATTER, LogInterval, as_ratio
from hotloop.judge.runs import MOST_FROM_QUEUE, RunTimes

MIN_MARGIN = 0.01
"""Smaller changes are not worth a claim: other layouts of the same program differ by as much."""

WIDEST_UNCHANGED = 0.03
"""The noise floor above which lying within it does not mean that nothing changed."""

LEAST_RARE = 0.02
"""Share of the time from which on rare slow steps are spoken of."""

EQUAL_WINDOW = 0.9
"""The shortest run must count at least this share of the longest one's steps."""

Pair = tuple[Measurement, Measurement]


@dataclass(frozen=True, slots=True)
class Total:
    """The speed ratio that all pairs show. `over` says what stands for each process: its median step, or all its steps."""

    over: JudgedSteps
    logs: tuple[float, ...]
    """Log ratio of each pair."""
    interval: LogInterval
    floor: float | None
    """Noise floor; `None`: no two runs of the baseline were measured."""
    notes: tuple[str, ...]
    """What the floor leaves out."""

    @property
    def margin(self) -> float:
        return max(MIN_MARGIN, self.floor or 0.0)

    @property
    def outcome(self) -> Outcome:
        """What may be claimed where nothing else speaks against it."""
        return outcome_of(self.interval, self.margin)


def outcome_of(interval: LogInterval, margin: float) -> Outcome:
    """The outcome: where the whole interval lies relative to `1 / (1 + margin)` and `1 + margin`.

    `unchanged` needs a margin of at most 3 % as well: on a machine whose identical runs scatter more,
    a change that matters fits between the edges.
    """
    edge = math.log1p(margin)
    if interval.low > edge:
        return "improved"
    if interval.high < -edge:
        return "regressed"
    if margin <= WIDEST_UNCHANGED and interval.low > -edge and interval.high < edge:
        return "unchanged"
    return "inconclusive"


def doubts_of(
    pairs: Sequence[Pair],
    times: Sequence[tuple[RunTimes, RunTimes]],
    decides: Total,
    typical: LogInterval,
    all_in: Total,
    looks: Sequence[int],
) -> list[str]:
    """Why no outcome may be claimed, however narrow the interval; empty when it may."""
    doubts = [*_few_or_equal(pairs, decides, looks), *_order(pairs), *_other_steps(times)]
    doubts += _second_opinion(typical, all_in, decides.margin)
    if decides.outcome == "regressed" and any(c.from_queue for _, c in times):
        doubts.append(
            "It used batches that were ready before: how fast they are made shows at least, and not at most."
        )
    return doubts


def _few_or_equal(pairs: Sequence[Pair], decides: Total, looks: Sequence[int]) -> list[str]:
    count = len(pairs)
    doubts = []
    if count < looks[0]:
        doubts.append(f"{count} of at least {looks[0]} pairs were measured.")
    elif max(decides.logs) - min(decides.logs) < NO_SCATTER:
        doubts.append(
            "Every pair has the same ratio: the clock is too coarse, or the runs were not separate."
        )
    return doubts


def _order(pairs: Sequence[Pair]) -> list[str]:
    firsts = {(b.plan.position, c.plan.position) for b, c in pairs}
    if len(pairs) == 1 or firsts not in ({(0, 1)}, {(1, 0)}):
        return []
    arm = pairs[0][0].arm if firsts == {(0, 1)} else pairs[0][1].arm
    return [f"`{arm}` ran first in every pair: order and change can not be told apart."]


def _other_steps(times: Sequence[tuple[RunTimes, RunTimes]]) -> list[str]:
    """The counted steps are no fair sample of the training, or not the same part of it."""
    doubts = []
    from_queue = max(run.from_queue for pair in times for run in pair)
    if from_queue > MOST_FROM_QUEUE:
        doubts.append(
            f"{from_queue:.0%} of the batches of the counted steps were ready before them: how fast they are "
            "made does not show."
        )
    counted = [run.num_counted for pair in times for run in pair]
    if times[0][0].unit != "work" and min(counted) < EQUAL_WINDOW * max(counted):
        doubts.append(
            f"The runs count between {min(counted)} and {max(counted)} steps: "
            "parts of different length of a training are not the same work."
        )
    return doubts


def decision(decides: Total) -> str:
    """The outcome, by where the whole interval lies."""
    outcome, margin, floor = decides.outcome, decides.margin, decides.floor
    source = (
        "the noise floor"
        if floor is not None and floor > MIN_MARGIN
        else "the least that is claimed"
    )
    low, high = f"{1 / (1 + margin):.3f}", f"{1 + margin:.3f}"
    edges = f"{low} to {high} ({source})"
    if outcome == "improved":
        return f"The whole interval lies above {high} ({source})."
    if outcome == "regressed":
        return f"The whole interval lies below {low} ({source})."
    if outcome == "unchanged":
        return f"The whole interval lies within {edges}."
    if margin > WIDEST_UNCHANGED:
        return f"The interval lies not outside {edges}, which is too wide to call it unchanged."
    return f"The interval reaches across an edge of {edges}."


def thread_note(pairs: Sequence[Pair]) -> list[str]:
    """Threads are a setting like any other: what they bring must not be credited to something else."""
    threads = [
        sorted({m.census.num_threads for m in arm if m.census and m.census.num_threads})
        for arm in zip(*pairs)
    ]
    if all(threads) and threads[0] != threads[1]:
        words = [" and ".join(map(str, arm)) for arm in threads]
        return [f"The arms ran with different numbers of threads: {words[0]} against {words[1]}."]
    return []


def _second_opinion(typical: LogInterval, all_in: Total, margin: float) -> list[str]:
    """Why a gain of one may not be claimed against the other: the typical step, and all steps together."""
    edge = math.log1p(margin)
    ratio, total = as_ratio(typical.mean), as_ratio(all_in.interval.mean)
    least = min(edge, all_in.interval.standard_error)
    if typical.low > edge and all_in.interval.mean < -least:
        return [
            f"Its typical step is faster ({ratio:.3g}x), but all steps together are slower ({total:.3g}x)."
        ]
    return []


def rare_note(times: Sequence[tuple[RunTimes, RunTimes]], decides: Total) -> list[str]:
    """How much of the time no change of the typical step can shorten."""
    runs = [run for pair in times for run in pair]
    rare_s = sum(run.rare_s for run in runs)
    share = rare_s / (rare_s + sum(run.steady_s for run in runs))
    if decides.over == "all" or share < LEAST_RARE:
        return []
    return [
        f"Rare slow steps, such as evaluations and saves, take {share:.0%} of the time and are "
        "counted as equally long in both."
    ]


def who_decides(decides: Total, typical: LogInterval, all_in: Total) -> list[str]:
    """What the total says beside the typical step."""
    if decides.over == "all":
        return [
            f"All steps together decide (the typical step alone: {as_ratio(typical.mean):.3g}x)."
        ]
    total = outcome_of(all_in.interval, decides.margin)
    if decides.outcome != total and ({decides.outcome, total} & {"improved", "regressed"}):
        return [f"Steady steps are {decides.outcome}; all steps together are {total}."]
    return []
