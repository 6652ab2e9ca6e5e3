"""`trials` and `final` of a diagnosis, which other programs read."""

from __future__ import annotations

from simulated_trials import Machine, Trying, product

from hotloop.core.files import to_plain
from hotloop.core.judgement import Diagnosis, Parity, Steps, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.doctor.fix_campaign import with_outcomes

EMPTY = Diagnosis("input", Steps(60, 10, 0.1))


def test_every_fix_that_was_begun_is_there_and_what_was_kept_is_final(trying: Trying) -> None:
    ledger = trying(Machine(product(a=2.0, b=1.0)), ["a", "b"])
    found = with_outcomes(EMPTY, ledger)
    assert [(each.optimization, each.kept) for each in found.trials] == [("a", True), ("b", False)]
    first, second = found.trials
    assert (first.outcome, first.ratio) == ("improved", ledger.fixes[0].verdict.ratio)  # type: ignore[union-attr]
    assert second.outcome in ("unchanged", "inconclusive")
    assert (second.reason, second.status) == (ledger.fixes[1].why, ledger.fixes[1].status)
    assert found.final is not None
    assert ledger.together is not None
    assert (found.final.kept, found.final.ratio) == (("a",), ledger.together.ratio)
    assert found.final.parity == ledger.together.parity.result


def test_values_are_named_as_a_script_names_them() -> None:
    verdict = Verdict(
        *("improved", 1.41, 1.37, 1.45, 0.99, Parity("same", "bitwise")),
        "baseline",
        "loader_workers",
    )
    fixes = (
        TriedFix("loader_workers", 4, "kept", "faster", verdict=verdict),
        TriedFix("gc_schedule", 100, "failed", "it ended with 1"),
        TriedFix("precision", "bf16", "not_tried", "the budget was spent"),
    )
    ledger = Ledger(("python",), fixes, ("loader_workers",), verdict, 10, 20, 1.0, None)
    plain = to_plain(with_outcomes(EMPTY, ledger))
    assert plain["trials"] == [
        {
            "optimization": "loader_workers", "setting": {"num_workers": 4}, "outcome": "improved", "ratio": 1.41,
            "ratio_low": 1.37, "ratio_high": 1.45, "parity": "same", "kept": True, "reason": "faster", "status": "kept",
        },
        {
            "optimization": "gc_schedule", "setting": {"gc_schedule": 100}, "outcome": "inconclusive", "ratio": None,
            "ratio_low": None, "ratio_high": None, "parity": "not_checked", "kept": False,
            "reason": "it ended with 1", "status": "failed",
        },
    ]  # fmt: skip
    assert plain["final"]["kept"] == ["loader_workers"]


def test_nothing_kept_has_no_ratio() -> None:
    found = with_outcomes(EMPTY, Ledger(("python",), (), (), None, 10, 20, 1.0, None))
    assert found.trials == ()
    assert found.final is not None
    assert (found.final.ratio, found.final.kept) == (None, ())
