"""How good the doctor's predictions were: what it expected of fixes against what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hotloop.core.ledger import Ledger, Prediction, Scorecard


def scorecard(ledgers: Sequence[tuple[str, Ledger]]) -> Scorecard:
    """The scorecard of all trials in these ledgers, each with the name of its run.

    coverage     share of the kept fixes with a prediction whose verified ratio lies inside it
    width        median of `high - low` of those predictions, to be compared with
    gain         median of `verified ratio - 1`: a wide prediction is right and says nothing
    error        median of `|verified / predicted - 1|`, the middle of the interval taken
    """
    fixes = [(run, fix) for run, ledger in ledgers for fix in ledger.fixes]
    known = [
        Prediction(
            run=run,
            name=fix.name,
            status=fix.status,
            predicted=fix.predicted,
            verified=fix.verdict.ratio,
            verified_low=fix.verdict.ratio_low,
            verified_high=fix.verdict.ratio_high,
            inside=fix.predicted.ratio_low <= fix.verdict.ratio <= fix.predicted.ratio_high,
        )
        for run, fix in fixes
        if fix.predicted is not None and fix.verdict is not None and fix.verdict.ratio is not None
    ]
    kept = [each for each in known if each.status == "kept"]
    return Scorecard(
        num_runs=len(ledgers),
        num_trials=sum(fix.verdict is not None for _, fix in fixes),
        num_kept=sum(fix.status == "kept" for _, fix in fixes),
        num_predicted=len(kept),
        coverage=sum(each.inside for each in kept) / len(kept) if kept else None,
        width=median(each.predicted.ratio_high - each.predicted.ratio_low for each in kept)
        if kept
        else None,
        gain=median(each.verified - 1 for each in kept) if kept else None,
        error=median(abs(each.verified / each.predicted.ratio - 1) for each in kept)
        if kept
        else None,
        predictions=tuple(known),
    )
