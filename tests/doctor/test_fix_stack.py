"""What is tried on top of another fix shares one error, on a machine that is made up."""

from __future__ import annotations

import re

import pytest
from simulated_trials import Machine, Trying, product

from hotloop.core.ledger import Ledger
from hotloop.doctor.fix_stack import ERROR_ON_TOP
from hotloop.doctor.trial_costs import budget_of
from hotloop.judge.looks import LOOKS
from hotloop.report.ledger import ledger_answer


def again(budget: str) -> str:
    return f"hotloop doctor --budget {budget}"


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


def test_a_confirmation_that_the_budget_ended_is_open_and_taken_up_again(trying: Trying) -> None:
    """Four pairs differ too much to tell, two more decide."""
    machine, uneven = Machine(product(a=1.5, b=1.3)), (1.0, 0.55, 1.0, 1.0)
    alike, budget_s = machine.gain, 3000.0

    def gain(fixes: frozenset[str], session: str) -> float:
        if not fixes or session != "together-a-b":
            return alike(fixes, session)
        made = sum(f"-{session}" in place for place in machine.places)
        # What the budget has left goes with the fourth pair.
        machine.slow_after = 0 if made == len(uneven) else 10**6
        return alike(fixes, session) * dict(enumerate(uneven, 1)).get(made, 1.0)

    machine.gain, machine.slow_start_s = gain, budget_s
    first = trying(machine, ["a", "b"], budget_s=budget_s, again=again)
    assert first.kept == ()
    assert first.together is not None
    assert first.together.num_pairs == LOOKS[0]
    told = r"but not confirmed yet: out of budget \(4 pairs showed [\d.]+x to [\d.]+x\)$"
    for fix in first.fixes:
        assert fix.status == "stopped"
        assert re.search(told, fix.why)
    assert ledger_answer(first) == "No fix is proven yet: the budget ended first."
    made = len(machine.places)
    found = re.fullmatch(r"hotloop doctor --budget (\w+)", first.continue_with or "")
    assert found is not None
    last = trying(machine, ["a", "b"], budget_s=budget_of(found[1]), again=again)
    assert (last.kept, last.continue_with) == (("a", "b"), None)
    assert [place[:20] for place in machine.places[made:]] == [
        f"together-a-b/pair-{number}" for number in ("05", "05", "06", "06")
    ]
