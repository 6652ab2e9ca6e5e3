"""How many steps are compared, and what is said where there are too few."""

from __future__ import annotations

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.doctor.trial_costs import budget_text, plan_for

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


def test_budget_is_named_as_it_is_given_and_rounded_up() -> None:
    assert [budget_text(s) for s in (149.2, 180, 181, 391, 10800, 10801)] == [
        *("150s", "180s", "4m", "7m", "180m", "4h"),
    ]
