"""How many steps are compared, and what is said where there are too few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, cast

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.judgement import Verdict
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.doctor.trial_costs import TimeLeft, budget_text, plan_for
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.judge.looks import LOOKS
from hotloop.judge.parity import not_checked
from hotloop.trial.plan import TrialPlan

ENVIRONMENT = Environment(
    "cpu", 1, None, 2, 2.0, None, "Linux", None, "3.12.1", None, None, None, "0"
)


def measured(warmup: int, counted: int) -> Measurement:
    """What the diagnosing run of a script gives."""
    records = tuple(
        StepRecord(step, 0.1, tags=("warmup",) if step < warmup else ())
        for step in range(warmup + counted)
    )
    return Measurement("script", ("python",), Plan(warmup, counted, 60.0), ENVIRONMENT, records)


@pytest.mark.parametrize(("warmup", "steps"), [(3, 12), (10, 5), (10, 9), (0, 8), (20, 5)])
def test_steps_that_ended_it_too_early_are_named_with_how_many_suffice(
    warmup: int, steps: int
) -> None:
    with pytest.raises(UsageError) as refused:
        plan_for(measured(warmup, steps), steps=steps)
    assert f"--steps {steps} ended it after {warmup + steps} steps: too few" in refused.value.what
    assert refused.value.do is not None
    assert "let it train for longer" not in refused.value.do
    enough = int(refused.value.do.split("--steps ")[1].split(",")[0])
    plan, _ = plan_for(measured(warmup, enough), steps=enough)
    assert plan.steps >= 10


def test_script_that_ends_before_the_steps_asked_for_is_itself_too_short() -> None:
    with pytest.raises(UsageError, match="15 steps were seen: too few"):
        plan_for(measured(3, 12), steps=30)


def test_budget_is_named_as_it_is_given_and_rounded_up() -> None:
    assert [budget_text(s) for s in (149.2, 180, 181, 391, 10800, 10801)] == [
        *("150s", "180s", "4m", "7m", "180m", "4h"),
    ]


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
    unconfirmed: int = LOOKS[0]
    grace_s: float = 0.0
    costs: Costs = field(default_factory=Costs)
    said: list[str] = field(default_factory=list)

    extend = TrialRunner.extend

    @property
    def left_s(self) -> float:
        return self.budget_s - self.spent_s

    def confirming_pairs(self, plan: TrialPlan) -> float:
        return self.unconfirmed

    def pays_for(self, seconds: float) -> bool:
        return seconds <= self.left_s

    def needed_s(self, pairs: int, **how: Any) -> float:
        return pairs * PAIR_S

    def warn(self, text: str) -> None:
        self.said.append(text)


def shown(ratios: Sequence[float]) -> Verdict:
    """Undecided, after pairs of these ratios."""
    parity = not_checked("bitwise", "")
    return Verdict(
        *("inconclusive", fmean(ratios), None, None, None, parity, "one", "two"),
        num_pairs=len(ratios),
        pair_ratios=tuple(ratios),
    )


def pairs_made(
    clock: Clock, *, each_s: float, reserved: bool, most: int = 20, ratio: float = 1.0
) -> int:
    """Before it says that the time is up. ratio: of each pair."""
    runner: Any = clock
    left = TimeLeft(cast(TrialRunner, runner), PLAN, slower_start_s=0.0, reserved=reserved)
    for number in range(1, most + 1):
        clock.spent_s += each_s
        if left.is_up(shown([ratio] * number), number):
            return number
    return most


@pytest.mark.parametrize(("ratio", "grace_s", "made"), [
    (1.5, 30.0, 4), (1.5, 0.0, 2), (1.5, 14.0, 2), (1.1, 30.0, 2),
])  # fmt: skip
def test_pairs_that_all_show_a_large_gain_go_on_to_the_next_look_within_the_grace(
    ratio: float, grace_s: float, made: int
) -> None:
    clock = Clock(25.0, grace_s=grace_s)
    assert pairs_made(clock, each_s=PAIR_S, reserved=False, most=LOOKS[0], ratio=ratio) == made
    assert clock.grace_s == grace_s - max(clock.budget_s - 25.0, 0.0)
    assert bool(clock.said) == (made > 2)


def test_a_pair_that_shows_no_gain_ends_it_and_so_does_a_gain_still_to_be_confirmed() -> None:
    runner: Any = Clock(25.0, spent_s=20.0, grace_s=60.0)
    left = TimeLeft(cast(TrialRunner, runner), PLAN, slower_start_s=0.0, reserved=False)
    assert left.is_up(shown([1.5, 1.0]), 2)
    assert not left.is_up(shown([1.5, 1.3]), 2)
    assert runner.left_s == 2 * PAIR_S  # two more make the first look
    runner = Clock(25.0, spent_s=20.0, grace_s=60.0)
    left = TimeLeft(cast(TrialRunner, runner), PLAN, slower_start_s=0.0, reserved=True)
    assert left.is_up(shown([1.5, 1.3]), 2)


def test_a_look_that_decides_nothing_goes_on_within_the_grace_where_every_pair_is_faster() -> None:
    for ratios, goes_on in (((1.7, 2.1, 1.4, 1.6), True), ((1.7, 2.1, 1.0, 1.6), False)):
        runner: Any = Clock(40.0, spent_s=40.0, grace_s=60.0)
        left = TimeLeft(cast(TrialRunner, runner), PLAN, slower_start_s=0.0, reserved=False)
        assert left.for_more_pairs(shown(ratios)) == goes_on


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


@pytest.mark.parametrize(
    ("step_s", "warmup"), [(0.01, 10), (0.2, 10), (0.5, 6), (1.0, 3), (30.0, 3)]
)
def test_slow_steps_are_warm_after_three_seconds_and_three_steps(
    step_s: float, warmup: int
) -> None:
    seen = measured(10, 50)
    records = tuple(replace(each, wall_s=step_s) for each in seen.records)
    plan, _ = plan_for(replace(seen, records=records), steps=None)
    assert plan.warmup_steps == warmup


def test_no_time_is_kept_for_a_confirmation_that_is_finished() -> None:
    clock = Clock(35.0, must_confirm=True, unconfirmed=0)
    assert pairs_made(clock, each_s=PAIR_S, reserved=True) == 3
    clock = Clock(65.0, must_confirm=True, unconfirmed=0)
    assert pairs_made(clock, each_s=PAIR_S, reserved=True, most=9) == 9


def test_pairs_of_earlier_calls_do_not_make_those_of_this_one_quicker() -> None:
    runner: Any = Clock(LOOKS[0] * 8 * PAIR_S)
    left = TimeLeft(cast(TrialRunner, runner), PLAN, slower_start_s=0.0, reserved=True)
    runner.spent_s = 8 * PAIR_S
    assert left.is_up(shown([1.0] * LOOKS[0]), 1)
    assert not left.is_up(shown([1.0] * LOOKS[0]), LOOKS[0])


def test_after_finished_pairs_alone_the_next_one_has_to_fit() -> None:
    runner: Any = Clock(PAIR_S, must_confirm=True)
    left = TimeLeft(cast(TrialRunner, runner), PLAN, slower_start_s=0.0, reserved=True)
    assert not left.is_up(shown([1.0]), 0)
    runner.spent_s = 1.0
    assert left.is_up(shown([1.0]), 0)
