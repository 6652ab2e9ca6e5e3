"""The best checkpoint interval, against a direct search for it."""

from __future__ import annotations

import math

import pytest

from hotloop.train.save_times import (
    DAY_S,
    MAX_S,
    best_interval_s,
    interruptions_per_day,
    interval_steps,
)


def whole_time(interval_s: float, save_s: float, between_s: float) -> float:
    """Time per second of useful work without restarts: Daly's model (2006), equation 20."""
    return between_s * (math.exp((interval_s + save_s) / between_s) - 1) / interval_s


@pytest.mark.parametrize("save_s", [0.01, 1.0, 30.0, 600.0])
@pytest.mark.parametrize("between_s", [600.0, 3600.0, DAY_S])
def test_no_other_interval_wastes_a_percent_less(save_s: float, between_s: float) -> None:
    chosen = best_interval_s(save_s, between_s)
    least = min(whole_time(between_s * 1.02**n, save_s, between_s) for n in range(-700, 100))
    assert whole_time(chosen, save_s, between_s) <= 1.01 * least
    if save_s < between_s / 100:
        assert chosen == pytest.approx(math.sqrt(2 * save_s * between_s), rel=0.1), "Young's"


def test_in_steps_it_stays_within_its_bounds() -> None:
    assert interval_steps(1.0, 0.5, 1.0) == round(best_interval_s(1.0, DAY_S) / 0.5)
    assert interval_steps(60.0, 2.0, 1e-3) == interval_steps(60.0, 2.0, 1e-6) == MAX_S / 2
    assert interval_steps(1.0, 1.0, 1e6) == 9, "no more than a tenth of the time"
    assert interval_steps(1e-6, 100.0, 10.0) == 1


def test_the_rate_is_one_a_day_at_first_and_then_what_was_seen() -> None:
    assert interruptions_per_day(0, 0) == 1
    assert interruptions_per_day(0, 9 * DAY_S) == pytest.approx(0.1)
    assert interruptions_per_day(240, 9 * DAY_S) == pytest.approx(24.1)
