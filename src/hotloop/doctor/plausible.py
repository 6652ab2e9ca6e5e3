"""What speaks against a gain that was measured: more than is possible, or than the steps could show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hotloop.core.judgement import Verdict
from hotloop.doctor.fixes import Fix
from hotloop.judge.runs import run_times
from hotloop.trial.session import SessionResult

NOISE = 1.05
"""A ratio may be above what is possible by this."""
FAR = 1.5
"""Times the log of what was expected at most: beyond it a gain is measured again over more steps."""
AGREES = 1.1
"""Both must say the same within this factor."""


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
    if most is None or verdict.ratio is None or verdict.ratio <= NOISE * most:
        return None
    return (
        f"{verdict.ratio:.3g}x is more than {fixes[0].value} workers can bring, {most:.3g}x at most"
    )


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
