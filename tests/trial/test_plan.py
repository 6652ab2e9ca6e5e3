from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from hotloop.core.errors import UsageError
from hotloop.trial import plan as planning
from hotloop.trial.plan import TrialPlan, candidate_first, round_orders


def plan(**changes: object) -> TrialPlan:
    return TrialPlan(**{"warmup_steps": 2, "steps": 5, "timeout_s": 60.0, **changes})  # type: ignore[arg-type]


def test_neither_order_is_much_rarer_and_the_first_look_has_both() -> None:
    for seed in range(200):
        order = candidate_first(10, seed)
        assert len(order) == 10
        assert 2 <= sum(order[:6]) <= 4
        assert 0 < sum(order[:4]) < 4
        assert 1 <= sum(order[6:]) <= 3
        assert sum(candidate_first(2, seed)) == 1


def test_order_is_drawn_from_the_seed_for_each_pair_by_itself() -> None:
    orders = {candidate_first(10, seed) for seed in range(1000)}
    assert candidate_first(10, 3) == candidate_first(10, 3)
    assert len(orders) > 400  # 2**5 where a block of two has both orders
    first = sum(candidate_first(10, seed)[0] for seed in range(1000))
    assert 430 < first < 570


def test_shorter_order_is_the_beginning_of_a_longer_one() -> None:
    assert candidate_first(10, 1)[:6] == candidate_first(6, 1)


def test_of_any_two_in_rounds_neither_order_is_rare_and_none_has_a_place_of_its_own() -> None:
    names, first = ["baseline", *"abcde"], Counter[str]()
    for seed in range(60):
        rounds = round_orders(10, names, seed)
        assert all(sorted(order) == sorted(names) for order in rounds)
        for one, other in combinations(names, 2):
            before = [order.index(one) < order.index(other) for order in rounds]
            assert 0 < sum(before[:4]) < 4
            assert 2 <= sum(before[:6]) <= 4
        first.update(order[0] for order in rounds)
    assert all(60 < first[name] < 140 for name in names), first


def test_draw_that_never_shows_both_orders_is_an_error_and_no_endless_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "_shuffled", lambda names, generator: [*names])
    with pytest.raises(AssertionError, match="2 names have no orders"):
        candidate_first(10, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"warmup_steps": -1},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"looks": ()},
        {"looks": (4, 4)},
        {"looks": (6, 4)},
        {"aa_pairs": -1},
    ],
)
def test_plan_that_compares_nothing_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        plan(**changes)
