from __future__ import annotations

import math
import random

from judge_inputs import curve

from hotloop.judge.levels import MAX_LEARNT_STEPS, compare_levels, learnt_after


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
