"""What becomes of a fix, and how that is said."""

from __future__ import annotations

import math
from pathlib import Path

from hotloop.core.judgement import Interval, Parity, Verdict
from hotloop.core.ledger import Status, TriedFix
from hotloop.doctor.applied import why_not_applied, why_wrong
from hotloop.doctor.directory import TRIALS
from hotloop.doctor.fixes import Fix
from hotloop.doctor.toggleable import reason_not_toggled
from hotloop.judge.compare import looks_faster
from hotloop.judge.estimate import as_ratio
from hotloop.judge.looks import LOOKS
from hotloop.judge.outcome import MIN_MARGIN
from hotloop.judge.parity import judge_parity
from hotloop.judge.rng_parity import WHAT_STAYS
from hotloop.trial.session import SessionResult


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


def judged(result: SessionResult, fix: Fix) -> tuple[Status, str]:
    """What becomes of a fix after its pairs."""
    verdict = result.verdict
    runs = runs_of(result, fix)
    wrong = why_wrong(fix, runs)
    if wrong is not None:
        return "rejected", wrong
    not_applied = why_not_applied(fix, runs, [candidate for _, candidate in result.pairs])
    if not_applied is None and fix.name in result.toggled:
        not_applied = reason_not_toggled(fix.name, runs)
    if not_applied is not None:
        return "not_applied", not_applied
    if verdict.num_pairs < LOOKS[0] and verdict.outcome != "incomparable":
        return "not_tried", showed(verdict)
    if fix.technique.what_if:
        return "what_if", "shows what it costs; it is not a fix"
    if verdict.outcome != "improved":
        return "rejected", not_faster(verdict)
    if verdict.parity.result == "different":
        return "rejected", "faster, but it learns something else: " + verdict.parity.reason
    if verdict.parity.result == "not_checked":
        return "rejected", "faster, but whether it learns the same is not known: " + (
            verdict.parity.reason or "its losses were not seen"
        )
    return "kept", why_kept(verdict)


def why_kept(verdict: Verdict) -> str:
    """In words."""
    same = "faster, and learns the same"
    return f"{same}: {WHAT_STAYS}" if verdict.parity.parity_class == "other_draws" else same


def may_yet(entry: TriedFix) -> bool:
    """Its pairs differed too much to tell: it looked faster, or what was expected of it could not have shown."""
    verdict, expected = entry.verdict, entry.predicted
    return (
        entry.status == "rejected"
        and verdict is not None
        and verdict.outcome == "inconclusive"
        and verdict.parity.result in ("same", "within_noise")
        and (looks_faster(verdict) or (expected is not None and _hidden(verdict, expected)))
    )


def ended_early(verdict: Verdict | None) -> bool:
    """Whether it looks faster, and only the budget had it end before the last look: a larger one may decide."""
    return (
        verdict is not None
        and verdict.outcome == "inconclusive"
        and not verdict.doubts
        and verdict.parity.result in ("same", "within_noise")
        and LOOKS[0] <= verdict.num_pairs < LOOKS[-1]
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


def runs_of(result: SessionResult, fix: Fix) -> list[Path]:
    """The directories that the processes with it wrote into."""
    return sorted(result.directory.glob(f"pair-*-{fix.name}/run"))


def not_faster(verdict: Verdict) -> str:
    """The words for a verdict that is not `improved`."""
    words = {
        "unchanged": "no gain",
        "regressed": "slower",
        "incomparable": "the runs cannot be compared: " + " ".join(verdict.reasons),
        "inconclusive": "inconclusive",
    }
    if verdict.outcome != "inconclusive":
        return words[verdict.outcome]
    if verdict.doubts:
        return "inconclusive: " + " ".join(verdict.doubts)
    # The interval may be clear of a gain where it is not clear of the edge to `regressed`.
    if verdict.ratio_high is not None and verdict.ratio_high < 1:
        return "slower"
    if verdict.ratio_high is not None and verdict.ratio_high <= 1 + MIN_MARGIN:
        return "no gain"
    effect = verdict.minimum_detectable_effect
    if effect is not None and effect > 1:
        return "inconclusive (not even twice the speed would have shown)"
    return "inconclusive" + (
        f" (too noisy to show less than {100 * effect:.3g} %)" if effect else ""
    )


def tried_fix(fix: Fix, status: Status, why: str, *, verdict: Verdict | None = None) -> TriedFix:
    """Its line of the ledger."""
    return TriedFix(
        name=fix.name,
        value=fix.value,
        status=status,
        why=why,
        answers=fix.answers,
        gain_at_most=fix.gain_at_most,
        predicted=fix.predicted,
        verdict=verdict,
        directory=f"{TRIALS}/{fix.name}" if verdict is not None else None,
    )


def showed(verdict: Verdict) -> str:
    """The ratio of each pair, where they are too few for an interval."""
    pairs = "1 pair" if verdict.num_pairs == 1 else f"{verdict.num_pairs} pairs"
    ratios = " and ".join(f"{ratio:.2f}x" for ratio in verdict.pair_ratios)
    return f"{pairs} showed {ratios or 'nothing'}"
