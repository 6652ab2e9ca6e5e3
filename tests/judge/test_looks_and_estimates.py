"""The error budget of sequential looks, and the formulas under a verdict."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from judge_inputs import pairs
from scipy import special

from hotloop.judge.compare import compare
from hotloop.judge.estimate import (
    log_interval,
    minimum_detectable_effect,
    noise_floor,
    paired_interval,
)
from hotloop.judge.looks import (
    LOOKS,
    checked_levels,
    default_levels,
    error_spent,
    level_at,
    should_stop,
)


def test_levels_of_the_default_looks_are_those_of_the_field_notes() -> None:
    assert default_levels(LOOKS) == pytest.approx((0.01, 0.015, 0.025))


@pytest.mark.parametrize("looks", [(4, 6, 10), (2,), (3, 9), (4, 5, 6, 7, 8)])
def test_levels_never_sum_to_more_than_five_per_cent(looks: tuple[int, ...]) -> None:
    assert sum(default_levels(looks)) == pytest.approx(0.05)
    assert error_spent(looks[-1], looks, default_levels(looks)) == pytest.approx(0.05)


def test_unplanned_looks_between_two_planned_ones_spend_less_than_the_next() -> None:
    levels = default_levels(LOOKS)
    for before, after in ((0, 4), (4, 6), (6, 10)):
        between = [level_at(count, LOOKS, levels) for count in range(before + 1, after)]
        assert sum(between) < level_at(after, LOOKS, levels)
        assert all(error_spent(count, LOOKS, levels) <= 0.05 for count in range(1, 11))


@pytest.mark.parametrize(
    ("looks", "alpha"),
    [((), None), ((1, 4), None), ((4, 4), None), ((6, 4), None), ((4, 6), (0.05,)), ((4,), (0.06,)), ((4,), (0.0,))],
)  # fmt: skip
def test_looks_that_make_no_sense_are_refused(
    looks: tuple[int, ...], alpha: tuple[float, ...] | None
) -> None:
    with pytest.raises(ValueError, match=r"look|level"):
        checked_levels(looks, alpha)


def verdict(ratio: float, count: int, scatter: float = 1.0):
    return compare(pairs(ratio, count, scatter=scatter), parity_class="bitwise")


def test_a_session_stops_at_a_decided_look() -> None:
    assert should_stop(verdict(1.3, 4), 4)
    assert should_stop(verdict(1 / 1.3, 6), 6)


def test_a_session_goes_on_while_undecided_and_ends_at_the_last_look() -> None:
    assert not should_stop(verdict(1.0, 4, scatter=10), 4)
    assert not should_stop(verdict(1.0, 6, scatter=10), 6)
    assert should_stop(verdict(1.0, 10, scatter=10), 10)


def test_a_session_goes_on_where_its_interval_would_help_nobody() -> None:
    wide = replace(verdict(3.0, 4), ratio_low=1.5, ratio_high=17.4)
    assert wide.outcome == "improved"
    assert not should_stop(wide, 4)
    assert should_stop(replace(wide, ratio_low=8.8), 4)
    assert should_stop(replace(wide, num_pairs=6), 6)


def test_a_session_never_stops_between_looks_on_a_good_result() -> None:
    assert verdict(1.3, 5).outcome == "improved"
    assert not should_stop(verdict(1.3, 5), 5)


def test_a_session_with_incomparable_arms_stops_at_once() -> None:
    from judge_inputs import ENVIRONMENT

    other = pairs(1.3, 1, environment=replace(ENVIRONMENT, torch="1.0"))
    assert should_stop(compare(other, parity_class="bitwise"), 1)


def test_the_interval_is_students() -> None:
    logs = [0.10, 0.12, 0.07, 0.09, 0.11]
    interval = log_interval(logs, 0.02)
    half = special.stdtrit(4, 0.99) * np.std(logs, ddof=1) / np.sqrt(len(logs))
    low, high = np.mean(logs) - half, np.mean(logs) + half
    assert (interval.low, interval.high) == pytest.approx((low, high))


def test_running_second_is_fitted_beside_the_gain_by_least_squares() -> None:
    logs = [0.10, 0.05, 0.12, 0.02, 0.09, 0.06, 0.04]
    first = [True, False, True, False, True, False, False]
    orders = [1 if each else -1 for each in first]
    slope, intercept = statistics.linear_regression(orders, logs)
    rest = [log - intercept - slope * order for log, order in zip(logs, orders)]
    away = statistics.fmean(orders) ** 2 / (len(logs) * statistics.pvariance(orders))
    error = math.sqrt(sum(each**2 for each in rest) / 5 * (1 / len(logs) + away))
    interval = paired_interval(logs, first, 0.02)
    assert interval.mean == pytest.approx(intercept)
    assert interval.standard_error == pytest.approx(error)
    assert interval.half_width == pytest.approx(special.stdtrit(5, 0.99) * error)


def test_the_noise_floor_shrinks_with_the_root_of_the_pairs() -> None:
    assert math.log1p(noise_floor([0.03, -0.04], 1)) == pytest.approx(math.sqrt(0.00125))
    assert math.log1p(noise_floor([0.03, -0.04], 9)) == pytest.approx(math.sqrt(0.00125) / 3)
    assert noise_floor([], 6) is None


@pytest.mark.parametrize(("count", "level"), [(4, 0.01), (6, 0.015), (10, 0.025)])
def test_the_minimum_detectable_effect_is_improved_in_80_of_100_cases(
    count: int, level: float
) -> None:
    scatter, margin = 0.02, 0.01
    effect = minimum_detectable_effect(scatter / math.sqrt(count), count, level, margin)
    random = np.random.default_rng(5)
    draws = math.log1p(effect) + scatter * random.normal(size=(4000, count))
    won = sum(log_interval(row, level).low > math.log1p(margin) for row in draws)
    assert won / 4000 == pytest.approx(0.8, abs=0.03)


def test_the_minimum_detectable_effect_of_one_pair_is_not_known() -> None:
    assert minimum_detectable_effect(math.inf, 1, 0.01, 0.01) is None
