from __future__ import annotations

import pytest

from hotloop.core.judgement import Interval, Parity, Verdict
from hotloop.core.ledger import Ledger, Status, TriedFix
from hotloop.judge.scorecard import scorecard


def verdict(ratio: float | None) -> Verdict:
    low, high = (None, None) if ratio is None else (ratio - 0.02, ratio + 0.02)
    parity = Parity("same", "bitwise")
    return Verdict("improved", ratio, low, high, 0.95, parity, "baseline", "fix")


def fix(
    status: Status, ratio: float | None, low: float | None = None, high: float | None = None
) -> TriedFix:
    predicted = None
    if low is not None and high is not None:
        predicted = Interval((low * high) ** 0.5, low, high)
    return TriedFix("fix", True, status, "", predicted=predicted, verdict=verdict(ratio))


def ledger(*fixes: TriedFix) -> Ledger:
    return Ledger(("python", "train.py"), fixes, (), None, 3, 20, 1.0, None)


def test_kept_fixes_count_and_others_are_only_listed() -> None:
    card = scorecard(
        [
            ("one", ledger(fix("kept", 1.10, 1.05, 1.15), fix("rejected", 1.0, 1.2, 1.4))),
            ("two", ledger(fix("kept", 1.50, 1.1, 1.3), fix("kept", 2.0), fix("failed", None))),
        ]
    )
    assert (card.num_runs, card.num_trials, card.num_kept, card.num_predicted) == (2, 5, 3, 2)
    assert card.coverage == 0.5
    assert card.width == pytest.approx(0.15)
    assert card.gain == pytest.approx(0.30)
    assert card.error == pytest.approx((1.10 / (1.05 * 1.15) ** 0.5 - 1 + 1.5 / 1.43**0.5 - 1) / 2)
    assert [each.inside for each in card.predictions] == [True, False, False]
    assert [each.run for each in card.predictions] == ["one", "one", "two"]


def test_without_any_prediction_nothing_is_claimed() -> None:
    card = scorecard([("one", ledger(fix("kept", 1.1)))])
    assert (card.num_kept, card.num_predicted, card.coverage, card.width) == (1, 0, None, None)
