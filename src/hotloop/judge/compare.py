"""Two arms, measured in interleaved pairs of fresh processes: what may be said about them.

    ratio        exp(mean over pairs of log(baseline seconds per work / candidate's)); of each process the typical
                 step, and what rare slow steps (evaluations, saves) take beyond it, as long in both, or all steps
    interval     t-interval of that mean beside the effect of the order, at the level of the look (`looks`, `estimate`)
    noise floor  exp(rms / sqrt(pairs)) - 1 over log ratios of identical code: the A/A pairs given, and
                 each two successive baseline runs of this comparison
    margin       max(1 %, noise floor)

`improved`: the whole interval lies above `1 + margin`; `regressed`: below its inverse; `unchanged`:
wholly between, where the margin is at most 3 %; else `inconclusive`. Environments that differ in a
key that matters are `incomparable`. No pair that is given is left out. Speed and parity are separate answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from hotloop.core.judgement import Interval, JudgedSteps, Outcome, Parity, ParityClass, Verdict
from hotloop.core.measurement import COMPARABLE_KEYS, Measurement
from hotloop.judge.estimate import (
    as_ratio,
    minimum_detectable_effect,
    noise_floor,
    paired_interval,
)
from hotloop.judge.looks import LOOKS, checked_levels, error_spent, level_at, num_looks
from hotloop.judge.outcome import (
    MIN_MARGIN,
    Pair,
    Total,
    decision,
    doubts_of,
    rare_note,
    thread_note,
    who_decides,
)
from hotloop.judge.parity import judge_parity
from hotloop.judge.runs import RunTimes, run_times

OTHER_WORK = 1.25
"""Times as much work in as many steps: then they are other parts of the training."""
SAME_SAMPLES = 1e-4
"""Relative difference of losses: rounding in fp32 is less over the steps that are compared, other samples are more."""
UNSEEN = (
    "How many samples each step takes was not seen, since no DataLoader gave them in each, and losses do not show that both "
    "take the same: a step may be faster because it is less work. If they do, pass `same_samples=True`."
)


def compare(
    pairs: Sequence[Pair],
    *,
    parity_class: ParityClass,
    parity: Parity | None = None,
    baseline_aa: Sequence[Pair] = (),
    looks: Sequence[int] = LOOKS,
    alpha: Sequence[float] | None = None,
    over: JudgedSteps = "steady",
    toggled: bool = False,
    equal_steps: bool = True,
) -> Verdict:
    """Judge `(baseline, candidate)` pairs in the order in which they were measured.

    parity: given where losses were compared in runs of their own. baseline_aa: pairs of the baseline
    with itself. alpha: the two-sided error of each look; by default 5 % in proportion to the pairs,
    0.01, 0.015 and 0.025 for looks at 4, 6 and 10. over: "all" decides by the total time of the
    counted steps, for a change whose gain is in rare, slow ones; chosen before anything was measured.
    toggled: each pair is one process, in which the change went on and off; what processes differ by is in
    both its halves, and only `baseline_aa` tells the noise. equal_steps: a step of one arm is known to be as much work as one
    of the other; else steps of which nobody saw how many samples they take decide nothing, unless losses show that these are the same.
    Raises `ValueError` for looks that make no sense, for more pairs than the last look and for pairs
    of mixed arms, and `UsageError` for times that are not positive numbers.
    """
    levels = checked_levels(looks, alpha)
    arms, times = _arms(pairs), list[tuple[RunTimes, RunTimes]]()
    reasons = environment_clashes([m for pair in pairs for m in pair])
    if not reasons:
        times, reasons = _times(pairs)
    if refused := reasons or _mixed_units(times):
        unchecked = Parity("not_checked", parity_class, reason=refused[0])
        return _refused(arms, parity or unchecked, len(pairs), refused)
    count = len(pairs)
    level = level_at(count, looks, levels)
    orders = () if toggled else _orders(pairs)

    def total(window: JudgedSteps) -> Total:
        # What lasts of the candidate to what was seen of the baseline: a queue never makes a gain.
        lent = [math.log(c.lasting_fraction) if window == "all" else 0.0 for _, c in times]
        logs = [_log_ratio(b, c, window) + each for (b, c), each in zip(times, lent)]
        interval = paired_interval(logs, orders, level)
        aa_logs, notes = _aa_log_ratios(baseline_aa, pairs, times, window, successive=not toggled)
        return Total(window, tuple(logs), interval, noise_floor(aa_logs, count), tuple(notes))

    steady, all_in = total("steady"), total("all")
    decides = _deciding(over, steady, all_in, count)
    typical = paired_interval([math.log(b.steady_s / c.steady_s) for b, c in times], orders, level)
    parity = parity or _parity_of(pairs, baseline_aa, parity_class, toggled=toggled)
    doubts = doubts_of(pairs, times, decides, typical, all_in, looks)
    unit = times[0][0].unit
    differs = parity.max_difference is None or parity.max_difference > SAME_SAMPLES
    if not equal_steps and unit == "step" and differs:
        doubts.insert(0, UNSEEN)
    said = [*(doubts or [decision(decides)]), *decides.notes, *thread_note(pairs)]
    if not doubts:
        said += who_decides(decides, typical, all_in) + rare_note(times, decides)
    said += _on_the_measurement(decides, looks, toggled=toggled)
    said += [] if equal_steps else [f"What is compared is the time per {unit}."]
    interval, known, whole = decides.interval, count > 1, all_in.interval
    judged = [_judged(baseline, candidate, decides.over) for baseline, candidate in times]
    return Verdict(
        outcome="inconclusive" if doubts else decides.outcome,
        ratio=as_ratio(interval.mean),
        ratio_low=as_ratio(interval.low) if known else None,
        ratio_high=as_ratio(interval.high) if known else None,
        confidence=1 - error_spent(count, looks, levels) if known else None,
        parity=parity,
        baseline=arms[0],
        candidate=arms[1],
        all_in=Interval(*map(as_ratio, (whole.mean, whole.low, whole.high))) if known else None,
        num_pairs=count,
        num_looks=num_looks(count, looks),
        noise_floor=decides.floor,
        minimum_detectable_effect=minimum_detectable_effect(
            interval.standard_error, count, level, decides.margin
        ),
        pair_ratios=tuple(as_ratio(value) for value in decides.logs),
        baseline_s_per_work=_geometric_mean([baseline_s for baseline_s, _ in judged]),
        candidate_s_per_work=_geometric_mean([candidate_s for _, candidate_s in judged]),
        unit=unit,
        reasons=tuple(said),
        doubts=tuple(doubts),
        over=decides.over,
        switched=toggled,
    )


def _refused(
    arms: tuple[str, str], parity: Parity, count: int, reasons: tuple[str, ...]
) -> Verdict:
    """The answer where there is nothing that can be compared."""
    outcome: Outcome = "incomparable" if count else "inconclusive"
    return Verdict(outcome, None, None, None, None, parity, *arms, num_pairs=count, reasons=reasons)


def _deciding(over: JudgedSteps, steady: Total, all_in: Total, count: int) -> Total:
    """The total is what the user gets, wherever it can be told from the typical step. What only the total shows as
    a gain is no claim: then the better of two answers would be taken."""
    if over == "all":
        return all_in
    less = all_in.interval.high < steady.interval.mean
    more = all_in.interval.low > steady.interval.mean
    if count > 1 and (less or (more and steady.outcome == "improved")):
        return all_in
    return steady


def _on_the_measurement(decides: Total, looks: Sequence[int], *, toggled: bool) -> list[str]:
    """What a reader should know of how it was measured."""
    said = []
    if decides.floor is None:
        said.append("The noise floor is not known: no two runs of the baseline were measured.")
    if toggled:
        said.append("Each pair is one process, in which it was turned on and off in turns.")
    count = len(decides.logs)
    if count not in looks and count > looks[0]:
        said.append(f"{count} pairs are not a planned look, so the interval is wider.")
    return said


def _parity_of(
    pairs: Sequence[Pair],
    baseline_aa: Sequence[Pair],
    parity_class: ParityClass,
    *,
    toggled: bool,
) -> Parity:
    if toggled:
        reason = "Both halves are of one process, which says nothing of what it learns with either."
        return Parity("not_checked", parity_class, reason=reason)
    baselines = [b.records for b, _ in pairs] + [m.records for pair in baseline_aa for m in pair]
    return judge_parity(baselines, [c.records for _, c in pairs], parity_class)


def looks_faster(verdict: Verdict) -> bool:
    """Whether the middle of the interval is a gain that could be claimed, decided or not."""
    return (verdict.ratio or 0.0) >= 1 + MIN_MARGIN


def environment_clashes(
    measurements: Sequence[Measurement], keys: Sequence[str] = COMPARABLE_KEYS
) -> tuple[str, ...]:
    """One sentence for each key that matters in which the environments differ."""
    sentences = []
    for key in keys:
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


def _times(pairs: Sequence[Pair]) -> tuple[list[tuple[RunTimes, RunTimes]], tuple[str, ...]]:
    """And runs that failed or have nothing to count, in words: such a run says nothing about speed."""
    times, sentences = list[RunTimes](), list[str]()
    for number, pair in enumerate(pairs, 1):
        for run in pair:
            who = f"The run of `{run.arm}` in pair {number}"
            if run.returncode:
                sentences.append(f"{who} failed with code {run.returncode}.")
            elif (each := run_times(run)) is None:
                sentences.append(f"{who} has no step that counts.")
            else:
                times.append(each)
    return list(zip(times[::2], times[1::2])), tuple(sentences)


def _mixed_units(times: Sequence[tuple[RunTimes, RunTimes]]) -> tuple[str, ...]:
    units = sorted({run.unit for pair in times for run in pair})
    if not times:
        return ("No pair was measured.",)
    if len(units) == 1:
        return ()
    return (f"The runs count different units of work: {' and '.join(units)}.",)


def _log_ratio(one: RunTimes, other: RunTimes, over: JudgedSteps) -> float:
    first, second = _judged(one, other, over)
    return math.log(first / second)


def _judged(one: RunTimes, other: RunTimes, over: JudgedSteps) -> tuple[float, float]:
    """Seconds per unit of work of both. Rare slow steps are too few to tell a change in them, and too many of them in
    one of both would look like one: to the typical step they add as much on either side. So they do to all steps where
    those of one are more work: as many of them come to the end of an epoch sooner."""
    rare_s = (one.rare_s * one.work + other.rare_s * other.work) / (one.work + other.work)
    if over == "steady":
        return one.steady_s + rare_s, other.steady_s + rare_s
    if max(one.work, other.work) < OTHER_WORK * min(one.work, other.work):
        return one.all_in_s, other.all_in_s
    return one.all_in_s - one.rare_s + rare_s, other.all_in_s - other.rare_s + rare_s


def _aa_log_ratios(
    baseline_aa: Sequence[Pair],
    pairs: Sequence[Pair],
    times: Sequence[tuple[RunTimes, RunTimes]],
    over: JudgedSteps,
    *,
    successive: bool,
) -> tuple[list[float], list[str]]:
    """Log ratios of the baseline against itself, and what was left out of them."""
    runs = pairwise(times) if successive else ()
    logs = [_log_ratio(a, b, over) for (a, _), (b, _) in runs]
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
        logs.append(_log_ratio(a, b, over))
    return logs, notes


def _geometric_mean(values: Sequence[float]) -> float:
    return as_ratio(sum(math.log(value) for value in values) / len(values))
