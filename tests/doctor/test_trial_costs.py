"""How many steps are compared, and what is said where there are too few."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.doctor.trial_costs import STEPS, fitted, plan_for
from hotloop.judge.parity import MIN_STEPS

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
    with pytest.raises(UsageError, match="it makes 15 steps: too few"):
        plan_for(measured(3, 12), steps=30)


def test_a_budget_leaves_room_for_trials_that_take_longer_than_was_seen() -> None:
    plan, costs = plan_for(measured(3, 60), steps=None)
    shortest = replace(plan, steps=STEPS[0])
    least = costs.least_s(shortest, MIN_STEPS)
    assert fitted(plan, costs, 60, 1.3 * least)[0].steps == STEPS[0]
    with pytest.raises(UsageError, match="too small to try one fix"):
        fitted(plan, costs, 60, 1.2 * least)
