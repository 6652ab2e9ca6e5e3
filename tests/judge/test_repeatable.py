"""Whether losses of two runs of the same code can be compared, and from where on not."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.step import StepRecord
from hotloop.judge.repeatable import why_not_repeatable


def run(losses: Sequence[float | None]) -> list[StepRecord]:
    return [StepRecord(step, 0.1, loss=loss) for step, loss in enumerate(losses)]


FALLING: list[float | None] = [2.0 / (1 + step) for step in range(30)]


def test_equal_runs_and_rounding_can_be_compared() -> None:
    assert why_not_repeatable(run(FALLING), run(FALLING)) is None
    rounded = [loss and loss * (1 + 1e-6) for loss in FALLING]
    assert why_not_repeatable(run(FALLING), run(rounded)) is None


def test_runs_that_part_at_once_draw_from_something_else() -> None:
    why = why_not_repeatable(run(FALLING), run([loss and loss * 1.1 for loss in FALLING]))
    assert why is not None
    assert "part by 9.1e-02 within 20 steps (from the first step on" in why


def test_step_from_which_they_part_is_said() -> None:
    other = [loss and loss * (1.5 if step >= 7 else 1) for step, loss in enumerate(FALLING)]
    why = why_not_repeatable(run(FALLING), run(other))
    assert why is not None
    assert "equal up to step 6, apart from step 7 on" in why


def test_later_steps_are_left_to_the_envelope_of_the_judge() -> None:
    other = [loss and loss * (1.5 if step >= 20 else 1) for step, loss in enumerate(FALLING)]
    assert why_not_repeatable(run(FALLING), run(other)) is None


def test_losses_that_were_not_seen_or_are_no_numbers() -> None:
    none: list[float | None] = [None] * 30
    assert "no loss was seen" in str(why_not_repeatable(run(none), run(none)))
    assert "losses of 19 steps" in str(why_not_repeatable(run(FALLING[:19]), run(FALLING)))
    broken = [*FALLING[:5], float("nan"), *FALLING[6:]]
    assert "not a number" in str(why_not_repeatable(run(broken), run(broken)))
