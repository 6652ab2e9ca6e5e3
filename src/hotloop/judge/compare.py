"""Two arms, measured in interleaved pairs of fresh processes: what may be said about them.

    ratio        exp(mean over pairs of log(baseline seconds per work / candidate's))
    interval     t-interval of that mean beside the effect of the order, at the level of the look (`looks`, `estimate`)
    noise floor  exp(rms / sqrt(pairs)) - 1 over log ratios of identical code: the A/A pairs given, and
                 each two successive baseline runs of this comparison
    margin       max(1 %, noise floor)

`improved`: the whole interval lies above `1 + margin`; `regressed`: below its inverse; `unchanged`:
wholly between, where the margin is at most 3 %; else `inconclusive`. Environments that differ in a
key that matters are `incomparable`. No pair is ever left out. Speed and parity are separate answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from hotloop.core.judgement import Interval, Outcome, Parity, ParityClass, Verdict, Window
from hotloop.core.measurement import COMPARABLE_KEYS, Measurement
from hotloop.judge.estimate import (
    NO_SCATTER,
    LogInterval,
    as_ratio,
    minimum_detectable_effect,
    noise_floor,
    paired_interval,
)
from hotloop.judge.looks import LOOKS, checked_levels, error_spent, level_at, num_looks
from hotloop.judge.parity import judge_parity
from hotloop.judge.runs import MOST_FROM_QUEUE, RunTimes, run_times

MIN_MARGIN = 0.01
"""Smaller changes are not worth a claim: other layouts of the same program differ by as much."""

WIDEST_UNCHANGED = 0.03
"""Where the noise floor is above this, lying within it does not mean that nothing changed."""

EQUAL_WINDOW = 0.9
"""The shortest run must count at least this share of the longest one's steps."""

Pair = tuple[Measurement, Measurement]


def compare(
    pairs: Sequence[Pair],
    *,
    parity_class: ParityClass,
    parity: Parity | None = None,
    baseline_aa: Sequence[Pair] = (),
    looks: Sequence[int] = LOOKS,
    alpha: Sequence[float] | None = None,
    over: Window = "steady",
    switched: bool = False,
) -> Verdict:
    """Judge `(baseline, candidate)` pairs in the order in which they were measured.

    parity: given where losses were compared in runs of their own. baseline_aa: pairs of the baseline
    with itself. alpha: the two-sided error of each look; by default 5 % in proportion to the pairs,
    0.01, 0.015 and 0.025 for looks at 4, 6 and 10. over: "all" decides by the total time of the
    counted steps, for a change whose gain is in rare, slow ones; chosen before anything was measured.
    switched: each pair is one process, in which the change went on and off; what processes differ by is in
    both its halves, and only `baseline_aa` tells the noise.
    Raises `ValueError` for looks that make no sense, for more pairs than the last look and for pairs
    of mixed arms, and `UsageError` for times that are not positive numbers.
    """
    levels = checked_levels(looks, alpha)
    baseline_arm, candidate_arm = _arms(pairs)

    def without_interval(outcome: Outcome, reasons: tuple[str, ...]) -> Verdict:
        unchecked = Parity("not_checked", parity_class, reason=reasons[0])
        return Verdict(
            outcome, None, None, None, None, parity or unchecked, baseline_arm, candidate_arm,
            num_pairs=len(pairs), reasons=reasons,
        )  # fmt: skip

    if not pairs:
        return without_interval("inconclusive", ("No pair was measured.",))
    if clashes := environment_clashes([m for pair in pairs for m in pair]):
        return without_interval("incomparable", clashes)
    if failures := _failures(pairs):
        return without_interval("incomparable", failures)
    times = [(_times(baseline), _times(candidate)) for baseline, candidate in pairs]
    units = sorted({run.unit for pair in times for run in pair})
    if len(units) > 1:
        return without_interval(
            "incomparable", (f"The runs count different units of work: {' and '.join(units)}.",)
        )

    count = len(pairs)
    level = level_at(count, looks, levels)
    # Of the candidate only what lasts, of the baseline what was seen: a queue never makes a gain.
    all_in_logs = [math.log(b.all_in_s / c.lasting_s) for b, c in times]
    steady_logs = [math.log(b.steady_s / c.steady_s) for b, c in times]
    ratios = all_in_logs if over == "all" else steady_logs
    orders = () if switched else _orders(pairs)
    interval = paired_interval(ratios, orders, level)
    aa_logs, aa_notes = _aa_log_ratios(baseline_aa, pairs, times, over, successive=not switched)
    floor = noise_floor(aa_logs, count)
    all_in = paired_interval(all_in_logs, orders, level)

    steady = paired_interval(steady_logs, orders, level)
    steady_says = outcome_of(interval, max(MIN_MARGIN, floor or 0.0))
    less, more = all_in.high < interval.mean, all_in.low > interval.mean
    if over == "steady" and count > 1 and (less or (more and steady_says == "improved")):
        # The total is what the user gets, wherever it can be told from the typical step. What only the total
        # shows as a gain is no claim: then the better of two answers would be taken.
        over, interval, ratios = "all", all_in, all_in_logs
        aa_logs, aa_notes = _aa_log_ratios(baseline_aa, pairs, times, over, successive=not switched)
        floor = noise_floor(aa_logs, count)
    margin = max(MIN_MARGIN, floor or 0.0)
    doubts = _doubts(pairs, times, ratios, looks)
    doubts += _second_opinion(steady, all_in, margin)
    if outcome_of(interval, margin) == "regressed" and any(c.from_queue for _, c in times):
        doubts.append(
            "It used batches that were ready before: how fast they are made shows at least, and not at most."
        )
    outcome = "inconclusive" if doubts else outcome_of(interval, margin)
    reasons = [*doubts, *aa_notes, *_thread_note(pairs)]
    if not doubts:
        reasons.insert(0, _decision(outcome, margin, floor))
        reasons += _who_decides(over, steady, all_in, outcome, outcome_of(all_in, margin))
    if floor is None:
        reasons.append("The noise floor is not known: no two runs of the baseline were measured.")
    if switched:
        reasons.append("Each pair is one process, in which it was turned on and off in turns.")
    if count not in looks and count > looks[0]:
        reasons.append(f"{count} pairs are not a planned look, so the interval is wider.")
    if parity is None and switched:
        reason = "Both halves are of one process, which says nothing of what it learns with either."
        parity = Parity("not_checked", parity_class, reason=reason)
    if parity is None:
        parity = judge_parity(
            [b.records for b, _ in pairs] + [m.records for pair in baseline_aa for m in pair],
            [c.records for _, c in pairs],
            parity_class,
        )
    known = count > 1
    return Verdict(
        outcome=outcome,
        ratio=as_ratio(interval.mean),
        ratio_low=as_ratio(interval.low) if known else None,
        ratio_high=as_ratio(interval.high) if known else None,
        confidence=1 - error_spent(count, looks, levels) if known else None,
        parity=parity,
        baseline=baseline_arm,
        candidate=candidate_arm,
        all_in=_as_ratios(all_in) if known else None,
        num_pairs=count,
        num_looks=num_looks(count, looks),
        noise_floor=floor,
        minimum_detectable_effect=minimum_detectable_effect(
            interval.standard_error, count, level, margin
        ),
        pair_ratios=tuple(as_ratio(value) for value in ratios),
        baseline_s_per_work=_geometric_mean([_judged(b, over) for b, _ in times]),
        candidate_s_per_work=_geometric_mean([_judged(c, over) for _, c in times]),
        unit=units[0],
        reasons=tuple(reasons),
        doubts=tuple(doubts),
        over=over,
        switched=switched,
    )


def outcome_of(interval: LogInterval, margin: float) -> Outcome:
    """Where the whole interval lies relative to `1 / (1 + margin)` and `1 + margin`.

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


def looks_faster(verdict: Verdict) -> bool:
    """Whether the middle of the interval is a gain that could be claimed, decided or not."""
    return (verdict.ratio or 0.0) >= 1 + MIN_MARGIN


def environment_clashes(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """One sentence for each key that matters in which the environments differ."""
    sentences = []
    for key in COMPARABLE_KEYS:
        values = dict.fromkeys(getattr(m.environment, key) for m in measurements)
        if len(values) > 1:
            shown = " and ".join(repr(value) for value in values)
            sentences.append(f"The environments differ in `{key}`: {shown}.")
    return tuple(sentences)


def _orders(pairs: Sequence[Pair]) -> tuple[bool, ...]:
    """Whether the candidate ran first, per pair; nothing where that was not written down."""
    places = [(b.plan.position, c.plan.position) for b, c in pairs]
    return tuple(c == 0 for _, c in places) if set(places) <= {(0, 1), (1, 0)} else ()


def _arms(pairs: Sequence[Pair]) -> tuple[str, str]:
    names = {(baseline.arm, candidate.arm) for baseline, candidate in pairs}
    if len(names) > 1:
        raise ValueError(f"pairs of more than one comparison: {sorted(names)}")
    return names.pop() if names else ("", "")


def _failures(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Runs that failed or have nothing to count; such a run says nothing about speed."""
    sentences = []
    for number, pair in enumerate(pairs, 1):
        for run in pair:
            who = f"The run of `{run.arm}` in pair {number}"
            if run.returncode:
                sentences.append(f"{who} failed with code {run.returncode}.")
            elif run_times(run) is None:
                sentences.append(f"{who} has no step that counts.")
    return tuple(sentences)


def _judged(times: RunTimes, over: Window) -> float:
    return times.all_in_s if over == "all" else times.steady_s


def _times(run: Measurement) -> RunTimes:
    times = run_times(run)
    assert times is not None  # `_failures` has checked
    return times


def _aa_log_ratios(
    baseline_aa: Sequence[Pair],
    pairs: Sequence[Pair],
    times: Sequence[tuple[RunTimes, RunTimes]],
    over: Window,
    *,
    successive: bool,
) -> tuple[list[float], list[str]]:
    """Log ratios of the baseline against itself, and what was left out of them."""
    runs = pairwise(times) if successive else ()
    logs = [math.log(_judged(a, over) / _judged(b, over)) for (a, _), (b, _) in runs]
    notes = []
    for number, (first, second) in enumerate(baseline_aa, 1):
        a, b = run_times(first), run_times(second)
        foreign = environment_clashes([pairs[0][0], first, second])
        plans = {(m.plan.warmup_steps, m.plan.steps) for m in (pairs[0][0], first, second)}
        if len(plans) > 1:
            notes.append(f"A/A pair {number} counts other steps, so it says nothing here.")
            continue
        if foreign or a is None or b is None or {a.unit, b.unit} != {times[0][0].unit}:
            notes.append(f"A/A pair {number} says nothing about this comparison: another setting.")
            continue
        logs.append(math.log(_judged(a, over) / _judged(b, over)))
    return logs, notes


def _doubts(
    pairs: Sequence[Pair],
    times: Sequence[tuple[RunTimes, RunTimes]],
    log_ratios: Sequence[float],
    looks: Sequence[int],
) -> list[str]:
    """Why no outcome may be claimed, however narrow the interval; empty when it may."""
    count = len(pairs)
    doubts = []
    if count < looks[0]:
        doubts.append(f"{count} of at least {looks[0]} pairs were measured.")
    elif max(log_ratios) - min(log_ratios) < NO_SCATTER:
        doubts.append(
            "Every pair has the same ratio: the clock is too coarse, or the runs were not separate."
        )
    firsts = {(b.plan.position, c.plan.position) for b, c in pairs}
    if count > 1 and firsts in ({(0, 1)}, {(1, 0)}):
        arm = pairs[0][0].arm if firsts == {(0, 1)} else pairs[0][1].arm
        doubts.append(f"`{arm}` ran first in every pair: order and change can not be told apart.")
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


def _decision(outcome: Outcome, margin: float, floor: float | None) -> str:
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


def _thread_note(pairs: Sequence[Pair]) -> list[str]:
    """Threads are a setting like any other: what they bring must not be credited to something else."""
    threads = [
        sorted({m.census.num_threads for m in arm if m.census and m.census.num_threads})
        for arm in zip(*pairs)
    ]
    if all(threads) and threads[0] != threads[1]:
        words = [" and ".join(map(str, arm)) for arm in threads]
        return [f"The arms ran with different numbers of threads: {words[0]} against {words[1]}."]
    return []


def _second_opinion(steady: LogInterval, all_in: LogInterval, margin: float) -> list[str]:
    """Why a gain of one may not be claimed against the other: the typical step, and all steps together."""
    edge = math.log1p(margin)
    ratio, total = as_ratio(steady.mean), as_ratio(all_in.mean)
    if steady.low > edge and all_in.mean < -min(edge, all_in.standard_error):
        return [
            f"Its typical step is faster ({ratio:.3g}x), but all steps together are slower ({total:.3g}x)."
        ]
    return []


def _who_decides(
    over: Window, steady: LogInterval, all_in: LogInterval, outcome: Outcome, total: Outcome
) -> list[str]:
    """What the total says beside the typical step."""
    if over == "all":
        typical = f"the typical step alone: {as_ratio(steady.mean):.3g}x"
        return [f"All steps together decide ({typical})."]
    if outcome != total and ({outcome, total} & {"improved", "regressed"}):
        return [f"Steady steps are {outcome}; all steps together are {total}."]
    return []


def _as_ratios(interval: LogInterval) -> Interval:
    return Interval(as_ratio(interval.mean), as_ratio(interval.low), as_ratio(interval.high))


def _geometric_mean(values: Sequence[float]) -> float:
    return as_ratio(sum(math.log(value) for value in values) / len(values))
