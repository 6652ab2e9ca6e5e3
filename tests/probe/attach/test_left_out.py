"""How many steps are left out, so that watching costs as little as was asked for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hotloop.probe.attach.passes import Cost
from hotloop.probe.attach.step_calls import Step
from hotloop.probe.attach.watch import FEWEST, RESTS, Watch

STEP_S = 0.001


def watched(tmp_path: Path, seen_s: float, out_s: float = 0.0, *, most: float | None) -> float:
    """Share of the time that the probe costs in the end, where a step looked at costs so much, and one left out."""
    watch = Watch(tmp_path)
    watch.most_cost, watch.counting = most, True
    spent = 0.0
    for number in range(1500):
        watch.counted_steps += 1
        watch.counted_s += STEP_S
        watch._worked_s += seen_s
        watch.rest()
        assert number >= FEWEST - 1 or not watch.resting
        assert watch.counting is not bool(watch.resting)
        assert (watch.clock.innermost == RESTS) is bool(watch.resting)
        watch._left_out_s += watch.resting * STEP_S
        watch._worked_s += watch.resting * out_s
        spent = watch._worked_s
        watch.clock.restart()
        watch.resting, watch.counting = 0, True
    assert (watch._num_left_out > 0) is (watch._left_out_s > 0)
    return spent / (watch.counted_s + watch._left_out_s)


@pytest.mark.parametrize(
    ("seen_s", "out_s"), [(20e-6, 0.0), (30e-6, 0.0), (100e-6, 5e-6), (200e-6, 8e-6)]
)
def test_so_many_are_left_out_that_the_rest_costs_no_more(
    tmp_path: Path, seen_s: float, out_s: float
) -> None:
    assert 0.013 < watched(tmp_path, seen_s, out_s, most=0.016) < 0.0175


def test_what_costs_little_is_looked_at_in_every_step(tmp_path: Path) -> None:
    assert watched(tmp_path, 15e-6, most=0.016) == pytest.approx(0.015)


def test_where_nobody_asks_for_it_none_is_left_out(tmp_path: Path) -> None:
    assert watched(tmp_path, 200e-6, most=None) == pytest.approx(0.2)


@pytest.mark.parametrize(("at_most", "most"), [(2, 2), (0, 0), (-4, 0)])
def test_no_more_are_left_out_than_there_are_before_the_profile(
    tmp_path: Path, at_most: int, most: int
) -> None:
    watch = Watch(tmp_path)
    watch.most_cost, watch.counting = 0.016, True
    watch.counted_steps, watch.counted_s, watch._worked_s = 100, 0.1, 0.05
    watch.rest(at_most=at_most)
    assert watch.resting == most
    assert watch.counting is (most == 0)


def test_left_out_steps_end_at_their_number_and_leave_nothing_in_the_next(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.most_cost, watch.counting, watch.claimed = 0.016, True, True
    watch.counted_steps, watch.counted_s, watch._worked_s = 100, 0.1, 0.05
    watch.guarded(watch.rest)
    num = watch.resting
    assert num > 1
    assert watch.enter("forward") == -1
    watch.tag("gc")
    for left in range(num, 0, -1):
        assert watch.resting == left
        watch.guarded(watch.end_step)
    assert (watch.step, watch.now.left_out, watch.now.tags) == (num, num, [])
    assert watch.clock.opened == ["unattributed"]
    assert not watch.closed
    watch.guarded(watch.end_step)
    step = watch.closed.pop()
    assert step is not None
    assert (step.step, step.left_out) == (num, num)
    assert set(step.host) == {"unattributed"}
    assert step.host["unattributed"] == pytest.approx(step.wall_s, abs=1e-4)
    assert 0 < step.left_out_s < 1
    assert watch.now.left_out == 0


def test_a_thread_kept_waiting_between_the_two_clocks_makes_no_step_shorter_than_its_phases(
    tmp_path: Path,
) -> None:
    watch = Watch(tmp_path)
    watch.claimed = True
    watch.clock.restart()
    watch.clock._step_started += 0.5  # the second clock was read so much later
    watch.own = {"unattributed": 10.0}
    watch.guarded(watch.end_step)
    step = watch.closed.pop()
    assert step is not None
    assert 0.0 <= step.host["unattributed"] == step.wall_s


def test_threads_start_and_profile_are_made_up_for_in_a_loop_of_250_steps(tmp_path: Path) -> None:
    """Of 20 ms each; looking at all of them would cost 2.7 %."""
    watch = Watch(tmp_path)
    watch.most_cost, watch.counting = 0.018, True
    watch.beside_share, watch._once_s = 0.006, 0.04
    while watch.step < 250:
        watch.step += 1
        watch.counted_steps += 1
        watch.counted_s += 0.02
        watch._worked_s += 260e-6
        watch.rest()
        watch.step += watch.resting
        watch._left_out_s += watch.resting * 0.02
        watch.clock.restart()
        watch.resting, watch.counting = 0, True
    passed_s = watch.counted_s + watch._left_out_s
    assert 0.015 < 0.006 + (0.04 + watch._worked_s) / passed_s < 0.0185
    assert 50 < watch.counted_steps < 120


def test_work_of_steps_that_do_not_count_is_made_up_for_too(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.claimed = True
    for wanted in (0.0, 0.01):  # the first step lasts since before the training
        watch.own = {"unattributed": 0.01}
        watch.guarded(watch.end_step)
        assert wanted <= watch._once_s < wanted + 0.005
    assert watch._worked_s == 0


def test_work_is_in_the_phase_in_which_it_is_done_also_where_it_opens_or_closes_one(
    tmp_path: Path,
) -> None:
    watch = Watch(tmp_path)

    def opens() -> int:
        depth = watch.enter("optimizer")
        time.sleep(0.05)  # the CPU is another program's
        return depth

    def closes(depth: int) -> None:
        time.sleep(0.05)
        watch.leave(depth)

    watch.guarded(closes, watch.guarded(opens))
    _, host, _ = watch.clock.cut_step()
    assert 0.1 <= watch.own["optimizer"] <= host["optimizer"]
    assert watch.own["unattributed"] <= host["unattributed"]


def test_cost_is_the_work_of_all_steps_and_of_the_threads_over_the_time_after_the_first_step() -> (
    None
):
    cost = Cost()
    cost.read_s, cost.beside_s = 1e-6, lambda: 5.0
    cost.begin()  # after minutes of loading
    cost.beside_s = lambda: 5.0 + 20e-6
    assert cost.share is None
    steps = [
        Step(
            samples=None, step=number, own_s=10e-6, counted=number > 2, wall_s=1e-3, left_out_s=1e-3
        )
        for number in range(5)
    ]
    assert cost.extra_reads(steps) == [10, 10, 10, 10, 30]
    assert cost.share == pytest.approx(60e-6 / 8e-3)
    assert cost.beside_share == pytest.approx(20e-6 / 8e-3)
    assert cost.all_s / cost.own_s == pytest.approx(1, rel=1e-3)  # threads cost as much without it
