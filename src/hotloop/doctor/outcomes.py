"""What came of trying fixes, in `diagnosis.json`: `trials` and `final`, which other programs read."""

from __future__ import annotations

from dataclasses import replace

from hotloop.core.judgement import Diagnosis, Final, TrialOutcome
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.optimizations.catalogue import CATALOGUE


def with_outcomes(diagnosis: Diagnosis, ledger: Ledger) -> Diagnosis:
    """The diagnosis with an entry for each fix of the ledger that was begun, and with what was kept."""
    begun = (fix for fix in ledger.fixes if fix.status != "not_tried" or fix.verdict is not None)
    return replace(diagnosis, trials=tuple(map(_outcome, begun)), final=_final(ledger))


def _outcome(fix: TriedFix) -> TrialOutcome:
    verdict, technique = fix.verdict, CATALOGUE.get(fix.name)
    argument = technique.argument if technique is not None else ""
    return TrialOutcome(
        optimization=fix.name,
        setting={argument or fix.name: fix.value},
        outcome=verdict.outcome if verdict is not None else "inconclusive",
        ratio=verdict.ratio if verdict is not None else None,
        ratio_low=verdict.ratio_low if verdict is not None else None,
        ratio_high=verdict.ratio_high if verdict is not None else None,
        parity=verdict.parity.result if verdict is not None else "not_checked",
        kept=fix.status == "kept",
        reason=fix.why,
    )


def _final(ledger: Ledger) -> Final:
    together = ledger.together
    if not ledger.kept or together is None:
        return Final(None, None, None, kept=(), parity="not_checked")
    return Final(
        together.ratio,
        together.ratio_low,
        together.ratio_high,
        kept=ledger.kept,
        parity=together.parity.result,
        outcome=together.outcome,
    )
