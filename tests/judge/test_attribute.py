"""Phases partition host wall time, and nothing is hidden."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from judge_inputs import curve, phased

from hotloop.core.census import Census
from hotloop.core.step import StepRecord
from hotloop.judge.attribute import STARTING_UP, attribute, device_shares

PLAIN = {"data_wait": 0.03, "forward": 0.02, "backward": 0.04, "unattributed": 0.01}


def test_fractions_are_seconds_of_a_phase_over_wall_seconds_and_sum_to_one() -> None:
    long = {phase: 3 * value for phase, value in PLAIN.items()}
    breakdown = attribute([phased(0, 0.1, **PLAIN), phased(1, 0.3, **long)])
    assert breakdown.fractions == pytest.approx(
        {"data_wait": 0.3, "forward": 0.2, "backward": 0.4, "unattributed": 0.1}
    )
    assert sum(breakdown.fractions.values()) == pytest.approx(1)
    assert breakdown.median_s == pytest.approx(0.2)
    assert breakdown.closure_error_fraction == pytest.approx(0)


@pytest.mark.parametrize("tag", sorted(STARTING_UP))
def test_steps_of_starting_up_are_left_out(tag: str) -> None:
    odd = phased(0, 10.0, tag, checkpoint=10.0)
    breakdown = attribute([odd, phased(1, 0.1, **PLAIN)])
    assert breakdown.num_steps == 1
    assert "checkpoint" not in breakdown.fractions


@pytest.mark.parametrize(
    "tag",
    ["gc", "checkpoint", "eval", "spike", "skipped", "rolled_back", "epoch", "recompile"],
)
def test_evaluating_and_saving_are_part_of_where_the_time_goes(tag: str) -> None:
    odd = phased(0, 0.3, tag, checkpoint=0.3)
    breakdown = attribute([odd, phased(1, 0.1, **PLAIN)])
    assert breakdown.num_steps == 2
    assert breakdown.fractions["checkpoint"] == pytest.approx(0.75)


def test_too_much_here_does_not_hide_too_little_there() -> None:
    steps = [phased(0, 0.1, forward=0.09), phased(1, 0.1, forward=0.11)]
    assert attribute(steps).closure_error_fraction == pytest.approx(0.1)


def test_unattributed_is_measured_and_never_made_up_to_close_the_sum() -> None:
    breakdown = attribute([phased(0, 0.1, forward=0.05)])
    assert breakdown.fractions["unattributed"] == 0
    assert breakdown.closure_error_fraction == pytest.approx(0.5)


def test_probe_overhead_is_reads_times_the_cost_of_one_over_wall_time() -> None:
    steps = [phased(n, 0.1, **PLAIN) for n in range(5)]
    timed = attribute(steps, census=Census(clock_read_s=1e-6))
    assert timed.probe_overhead_fraction == pytest.approx(1e-4)
    assert attribute(steps).probe_overhead_fraction is None


def test_steps_that_were_left_out_are_in_what_the_probe_cost_and_in_no_share() -> None:
    steps = [replace(phased(n, 0.1, **PLAIN), left_out=3, left_out_s=0.3) for n in range(5)]
    found = attribute(steps, census=Census(clock_read_s=1e-6))
    assert found.probe_overhead_fraction == pytest.approx(1e-4 / 4)
    assert found.fractions == attribute([phased(n, 0.1, **PLAIN) for n in range(5)]).fractions
    assert found.num_steps == 5


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_phases_that_are_not_seconds_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="forward"):
        attribute([phased(0, 0.1, forward=seconds)])


@pytest.mark.parametrize("wall", [0.0, -1.0, math.nan])
def test_a_step_without_wall_time_is_refused(wall: float) -> None:
    with pytest.raises(ValueError, match="step 0"):
        attribute([phased(0, wall, forward=0.1)])


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(ValueError, match="thinking"):
        attribute([phased(0, 0.1, thinking=0.1)])


def test_a_step_clock_alone_can_not_be_attributed() -> None:
    with pytest.raises(ValueError, match="carries phases"):
        attribute(curve([1.0] * 5))


def test_device_time_is_partitioned_by_itself() -> None:
    steps = [StepRecord(n, 0.1, device={"compute": 0.06, "idle": 0.02}) for n in range(3)]
    assert device_shares(steps) == pytest.approx({"compute": 0.75, "idle": 0.25})
    assert device_shares(curve([1.0])) is None
