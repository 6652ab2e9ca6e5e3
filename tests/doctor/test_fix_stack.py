"""What is tried on top of another fix shares one error, on a machine that is made up."""

from __future__ import annotations

import pytest
from simulated_trials import Machine, Trying, product

from hotloop.core.ledger import Ledger
from hotloop.doctor.fix_stack import ERROR_ON_TOP


def confidences(ledger: Ledger) -> dict[str, float | None]:
    return {fix.name: fix.added and fix.added.confidence for fix in ledger.fixes}


def test_fixes_that_are_tried_on_top_share_one_error(trying: Trying) -> None:
    """4 pairs spend a fifth of it."""
    gains = {"a": 2.5, "b": 1.6, "c": 1.5}
    ledger = trying(Machine(product(**gains)), list(gains))
    assert ledger.kept == ("a", "b", "c")
    each = pytest.approx(1 - ERROR_ON_TOP / 2 / 5)
    assert confidences(ledger) == {"a": None, "b": each, "c": each}
    assert ledger.together is not None
    assert ledger.together.confidence == pytest.approx(0.99)


def test_one_alone_on_top_has_all_of_it(trying: Trying) -> None:
    ledger = trying(Machine(product(a=2.5, b=1.6)), ["a", "b"], directory="two")
    assert confidences(ledger)["b"] == pytest.approx(1 - ERROR_ON_TOP / 5)


def test_pooled_ratio_is_of_the_only_fix_that_is_kept(trying: Trying) -> None:
    """Alone it was lucky: over all pairs it lies between."""
    machine = Machine(
        lambda fixes, session: (1.9 if session == "a" else 1.5) if "a" in fixes else 1.0
    )
    ledger = trying(machine, ["a", "b"])
    assert ledger.kept == ("a",)
    assert ledger.together is not None
    assert ledger.together.ratio == pytest.approx(1.5, rel=0.01)
    assert ledger.together_pooled == pytest.approx((1.9 * 1.5) ** 0.5, rel=0.01)
    both = trying(Machine(product(a=2.0, b=1.5)), ["a", "b"], directory="both")
    assert (len(both.kept), both.together_pooled) == (2, None)
