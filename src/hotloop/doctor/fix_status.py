"""What becomes of a fix, how that is said, and what speaks against a gain: more than is possible, or than steps could show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hotloop.core.judgement import Interval, Parity, Status, Verdict
from hotloop.core.ledger import TriedFix
from hotloop.doctor.directory import TRIALS
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_reports import reason_not_toggled, why_not_applied, why_wrong
from hotloop.judge.compare import looks_faster
from hotloop.judge.estimate import as_ratio
from hotloop.judge.looks import LOOKS
from hotloop.judge.outcome import MIN_MARGIN
from hotloop.judge.parity import judge_parity
from hotloop.judge.rng_parity import WHAT_STAYS
from hotloop.judge.runs import run_times
from hotloop.judge.worth import PAIRS
from hotloop.trial.session import SessionResult

ABOVE = 1.05
"""A ratio may be above what is possible by this."""
FAR = 1.5
"""Times the log of what was expected at most: beyond it a gain is measured again over more steps."""
AGREES = 1.1
"""Both must say the same within this factor."""


def useless(verdict: Verdict) -> bool:
    """Whether no pair shows even the least gain that would be claimed."""
    return all(ratio < 1 + MIN_MARGIN for ratio in verdict.pair_ratios)


def longer(parity: Parity, result: SessionResult) -> Parity:
    """`parity`, unless the timed runs, which are longer, show that losses part that should be equal.

    Timed runs have no seed but the script's own: they tell only where those of the unchanged command begin alike.
    """
    baselines = [baseline.records for baseline, _ in result.pairs]
    begins = [next((record.loss for record in records), None) for records in baselines]
    is_seeded = len(begins) > 1 and len(set(begins)) == 1
    if parity.parity_class != "bitwise" or not is_seeded:
        return parity
    timed = judge_parity(
        baselines,
        [candidate.records for _, candidate in result.pairs],
        "bitwise",
    )
    return timed if timed.result == "different" else parity


def judged(result: SessionResult, fix: Fix, *, is_live: bool = True) -> tuple[Status, str]:
    """What becomes of a fix after its pairs. is_live: it was put into the process, which says whether it took effect."""
    runs = sorted(result.directory.glob(f"pair-*-{fix.name}/run")) if is_live else []
    wrong = why_wrong(fix, runs)
    if wrong is not None:
        return "rejected", wrong
    not_applied = reason_without_effect(fix, runs, result)
    if not_applied is not None:
        return "not_applied", not_applied
    status, why = status_of(result.verdict)
    if fix.technique.what_if and status != "stopped":
        return "what_if", "shows what it costs; it is not a fix"
    return status, why


def status_of(verdict: Verdict) -> tuple[Status, str]:
    """`kept`, `rejected`, `undecided` or `stopped`, as the pairs and losses of a fix have it, and why."""
    if verdict.outcome == "incomparable":
        return "rejected", "the runs cannot be compared: " + " ".join(verdict.reasons)
    if verdict.num_pairs < LOOKS[0]:
        return "stopped", showed(verdict)
    if verdict.outcome in ("unchanged", "regressed"):
        return "rejected", {"unchanged": "no gain", "regressed": "slower"}[verdict.outcome]
    faster = "faster, but " if verdict.outcome == "improved" else ""
    if verdict.parity.result == "different":
        return "rejected", f"{faster}it learns something else: {verdict.parity.reason}"
    if verdict.outcome == "inconclusive":
        return _without_outcome(verdict)
    if verdict.parity.result == "not_checked":
        why = verdict.parity.reason or "its losses were not seen"
        return "rejected", f"faster, but whether it learns the same is not known: {why}"
    what_stays = f": {WHAT_STAYS}" if verdict.parity.parity_class == "other_draws" else ""
    return "kept", f"faster, and learns the same{what_stays}"


def _without_outcome(verdict: Verdict) -> tuple[Status, str]:
    """An interval that crosses an edge may all the same be clear of a gain."""
    if verdict.doubts:
        return "undecided", "inconclusive: " + " ".join(verdict.doubts)
    if verdict.ratio_high is not None and verdict.ratio_high <= 1 + MIN_MARGIN:
        return "rejected", "slower" if verdict.ratio_high < 1 else "no gain"
    effect = verdict.minimum_detectable_effect
    if not effect:
        return "undecided", "inconclusive"
    if effect > 1:
        return (
            "undecided",
            "inconclusive (its pairs differ too much: even a 2x gain would not have shown)",
        )
    return (
        "undecided",
        f"inconclusive (its pairs differ too much to show a gain below {100 * effect:.2g} %)",
    )


def reason_without_effect(fix: Fix, runs: list[Path], result: SessionResult) -> str | None:
    """Why the timed processes of a candidate, which wrote into `runs`, were not with the fix, or not only in turns; `None`: they were."""
    if fix.name not in result.toggled:
        return why_not_applied(fix, runs, [candidate for _, candidate in result.pairs])
    # What their census says at their end is how the last block was.
    return why_not_applied(fix, runs, ()) or reason_not_toggled(fix.name, runs)


def may_yet(entry: TriedFix) -> bool:
    """Its pairs differed too much to tell: it looked faster, or what was expected of it could not have shown."""
    verdict, expected = entry.verdict, entry.predicted
    return (
        entry.status == "undecided"
        and verdict is not None
        and verdict.parity.result in ("same", "within_noise")
        and (looks_faster(verdict) or (expected is not None and _hidden(verdict, expected)))
    )


def may_decide(verdict: Verdict | None) -> bool:
    """Whether only the budget had it end: more time makes more pairs, which may show more than how much slower it is."""
    return (
        verdict is not None
        and verdict.outcome == "inconclusive"
        and not verdict.doubts
        and verdict.num_pairs < LOOKS[-1]
        and (verdict.num_pairs < PAIRS or looks_faster(verdict))
    )


def ended_early(verdict: Verdict | None) -> bool:
    """Whether it looks faster at a look, and a larger budget may decide."""
    return (
        verdict is not None
        and may_decide(verdict)
        and verdict.parity.result in ("same", "within_noise")
        and verdict.num_pairs >= LOOKS[0]
        and looks_faster(verdict)
    )


def _hidden(verdict: Verdict, expected: Interval) -> bool:
    """Not even the most that was expected would have been detected, and a gain is still possible."""
    effect, high = verdict.minimum_detectable_effect, verdict.ratio_high
    return (
        effect is not None
        and effect > expected.ratio_high - 1 > MIN_MARGIN
        and high is not None
        and high > 1 + MIN_MARGIN
    )


def pooled_ratio(alone: Verdict | None, fresh: Verdict | None) -> float | None:
    """The mean over all pairs of both; `None` unless both are known and compare the same."""
    if alone is None or fresh is None or not (alone.pair_ratios and fresh.pair_ratios):
        return None
    if (alone.over, alone.switched, alone.unit) != (fresh.over, fresh.switched, fresh.unit):
        return None
    logs = [math.log(ratio) for ratio in (*alone.pair_ratios, *fresh.pair_ratios)]
    return as_ratio(sum(logs) / len(logs))


def tried_fix(
    fix: Fix,
    status: Status,
    why: str,
    result: SessionResult | None = None,
    *,
    begun: bool = False,
    details: str = "",
) -> TriedFix:
    """Its line of the ledger. result: of its own pairs. begun: it has trials, of its losses at least."""
    plan = None if result is None else result.pairs[0][1].plan
    return TriedFix(
        name=fix.name,
        value=fix.value,
        status=status,
        why=why,
        answers=fix.answers,
        gain_at_most=fix.gain_at_most,
        predicted=fix.predicted,
        verdict=None if result is None else result.verdict,
        details=details or fix.limited,
        directory=f"{TRIALS}/{fix.name}" if begun or result is not None else None,
        warmup_steps=None if plan is None else plan.warmup_steps,
        steps=None if plan is None else plan.steps,
    )


def showed(verdict: Verdict) -> str:
    """The interval, or the ratio of each pair where they are too few for one."""
    pairs = "1 pair" if verdict.num_pairs == 1 else f"{verdict.num_pairs} pairs"
    low, high = verdict.ratio_low, verdict.ratio_high
    if verdict.num_pairs >= LOOKS[0] and low is not None and high is not None:
        return f"{pairs} showed {low:.2f}x to {high:.2f}x"
    ratios = " and ".join(f"{ratio:.2f}x" for ratio in verdict.pair_ratios)
    return f"{pairs} showed {ratios or 'nothing'}"


def with_doubts(result: SessionResult, fixes: Sequence[Fix]) -> SessionResult:
    """The result; no gain where one of the fixes could not have brought it, or its steps do not show that it lasts."""
    verdict = result.verdict
    if verdict.outcome != "improved":
        return result
    doubt = _impossible(verdict, fixes) or _lent(result, fixes)
    return result if doubt is None else replace(result, verdict=doubted(verdict, doubt))


def doubted(verdict: Verdict, doubt: str) -> Verdict:
    """Nothing is claimed any more, for this reason."""
    doubts = (*verdict.doubts, doubt)
    return replace(
        verdict, outcome="inconclusive", doubts=doubts, reasons=(doubt, *verdict.reasons)
    )


def _impossible(verdict: Verdict, fixes: Sequence[Fix]) -> str | None:
    most = fixes[0].most_ratio if len(fixes) == 1 else None
    if most is None or verdict.ratio is None or verdict.ratio <= ABOVE * most:
        return None
    return f"{verdict.ratio:.3g}x is more than its workers can bring, {most:.3g}x at most"


def _lent(result: SessionResult, fixes: Sequence[Fix]) -> str | None:
    """The doubt about a run too short to use up what workers had ready; none where they kept up all the same."""
    queue = max((fix.queue for fix in fixes), key=lambda each: each.length)
    warmup = result.pairs[0][1].plan.warmup_steps
    if warmup >= queue.warmup_steps:
        return None
    times = [run_times(run) for pair in result.pairs for run in pair]
    seen = all(
        each.batches_ready is not None
        for _, candidate in result.pairs
        for each in candidate.counted()
    )
    if seen and not any(each.from_queue for each in times if each is not None):
        return None
    return (
        f"workers may have batches for {queue.length} steps ready, and the run makes too few steps to show "
        "how fast they go on"
    )


def is_surprising(verdict: Verdict, fix: Fix) -> bool:
    """Whether it gains far more than was expected at most."""
    return (
        verdict.outcome == "improved"
        and fix.predicted is not None
        and verdict.ratio_low is not None
        and math.log(verdict.ratio_low) > FAR * math.log(max(fix.predicted.ratio_high, 1.0))
    )


def confirmed_over_more(first: Verdict, longer: Verdict | None, fix: Fix) -> Verdict:
    """The verdict over more steps where it shows the same gain; else one that claims nothing.

    longer: `None` where the run has no more steps, or the budget no time for them.
    """
    assert fix.predicted is not None
    assert first.ratio is not None
    expected = f"{fix.predicted.ratio_low:.3g}x to {fix.predicted.ratio_high:.3g}x"
    above = f"{first.ratio:.3g}x is far above what was expected ({expected})"
    if longer is None:
        return doubted(first, f"{above}, and there were no more steps to look at")
    if longer.outcome != "improved" or longer.ratio is None:
        return longer
    if abs(math.log(longer.ratio / first.ratio)) > math.log(AGREES):
        return doubted(longer, f"{above}, and over more steps it is {longer.ratio:.3g}x")
    return longer
