"""Whether losses of two runs of the same code can be compared, and from where on not."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from judge_inputs import curve

from hotloop.core.step import StepRecord
from hotloop.judge.loss_curves import (
    MAX_LEARNT_STEPS,
    compare_levels,
    learnt_after,
    why_not_repeatable,
)


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


def falling(steps: int, *, to: float = 0.2, after: int = 0, rises: float = 0.0) -> list[float]:
    """From 0.7, with the scatter of batches; from `after` on it rises."""
    noise = random.Random(1)
    return [
        to
        + (0.7 - to) * math.exp(-step / 80)
        + rises * max(step - after, 0)
        + 0.02 * noise.uniform(-1, 1)
        for step in range(steps)
    ]


def test_comparison_goes_until_most_of_the_fall_is_seen() -> None:
    reached = learnt_after(curve(falling(1000)))
    assert reached is not None
    assert 100 < reached < 200  # exp(-t / 80) is 0.2 at 129
    assert learnt_after(curve([1.0 - 1e-3 * step for step in range(5000)])) == MAX_LEARNT_STEPS


def test_loss_that_does_not_fall_says_nothing_of_when() -> None:
    noise = random.Random(1)
    assert learnt_after(curve([1 + 0.1 * noise.uniform(-1, 1) for _ in range(500)])) is None
    assert learnt_after(curve(falling(30))) is None


def test_candidate_that_parts_late_has_not_come_as_far() -> None:
    base, same = falling(600), falling(600)
    worse = falling(600, after=300, rises=2e-4)
    passed, went = compare_levels(curve(base), curve(same))
    assert passed
    assert "over 600 steps the loss went from 0.6" in went
    passed, went = compare_levels(curve(base), curve(worse))
    assert not passed
    assert compare_levels(curve(base), curve([*base[:-1], math.nan]))[0] is False


def test_candidate_that_is_as_low_by_other_roundings_passes() -> None:
    noise = random.Random(2)
    other = [each * (1 + 5e-3 * noise.uniform(-1, 1)) for each in falling(400)]
    assert compare_levels(curve(falling(400)), curve(other))[0]
