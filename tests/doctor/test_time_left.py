"""When a comparison ends for want of time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from hotloop.doctor.time_left import TimeLeft
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.judge.looks import LOOKS
from hotloop.trial.plan import TrialPlan

PLAN = TrialPlan(warmup_steps=2, steps=20, timeout_s=60.0)
PAIR_S = 10.0


@dataclass
class Costs:
    def pair_s(self, plan: TrialPlan) -> float:
        return PAIR_S


@dataclass
class Clock:
    """As much of a trial runner as is asked: what was spent, and what is left of a budget."""

    budget_s: float
    spent_s: float = 0.0
    must_confirm: bool = False
    costs: Costs = field(default_factory=Costs)

    @property
    def left_s(self) -> float:
        return self.budget_s - self.spent_s


def pairs_made(clock: Clock, *, each_s: float, reserved: bool, most: int = 20) -> int:
    """Before it says that the time is up."""
    runner: Any = clock
    left = TimeLeft(cast(TrialRunner, runner), PLAN, slower_start_s=0.0, reserved=reserved)
    for number in range(1, most + 1):
        clock.spent_s += each_s
        if left.is_up():
            return number
    return most


def test_up_to_the_first_look_only_the_next_pair_has_to_fit() -> None:
    assert pairs_made(Clock(25.0), each_s=PAIR_S, reserved=True) == 2
    assert pairs_made(Clock(25.0), each_s=PAIR_S, reserved=False) == 2


def test_later_what_has_to_follow_must_fit_as_slow_as_it_has_become() -> None:
    quick = pairs_made(Clock(120.0), each_s=PAIR_S, reserved=True)
    assert quick == 12 - LOOKS[0] + 1  # less than that many pairs would be left
    slow = pairs_made(Clock(240.0), each_s=2 * PAIR_S, reserved=True)
    assert slow == quick


def test_nothing_follows_what_confirms() -> None:
    assert pairs_made(Clock(1e9), each_s=PAIR_S, reserved=False, most=9) == 9
    assert pairs_made(Clock(65.0), each_s=PAIR_S, reserved=False, most=9) == 9


def test_where_fixes_wait_for_their_confirmation_its_time_is_kept_from_the_first_pair_on() -> None:
    clock = Clock(60.0, must_confirm=True)
    assert pairs_made(clock, each_s=PAIR_S, reserved=True) == 6 - LOOKS[0] + 1
