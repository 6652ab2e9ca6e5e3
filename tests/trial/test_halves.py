"""One process as two runs."""

from __future__ import annotations

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.trial.toggling import (
    ALTERNATE,
    LEAST_BLOCK,
    MOST_BLOCKS,
    SETTLING,
    SHORT_BLOCK,
    block_steps_for,
    counted_in_blocks,
    halves,
    off_halves,
    toggle_schedule,
)

ENVIRONMENT = Environment("cpu", 1, None, 2, 2.0, None, "Linux", None, "3", None, None, None, "0")


@pytest.mark.parametrize("steps", [39, 40, 79, 80, 95, 160, 641, 1000, 5000])
def test_blocks_are_whole_and_as_many_in_each_half(steps: int) -> None:
    block_steps = block_steps_for(steps)
    if block_steps is None:
        assert steps < SHORT_BLOCK * ALTERNATE
        return
    counted = counted_in_blocks(steps, block_steps)
    assert steps / 2 < counted <= steps
    assert counted % (ALTERNATE * block_steps) == 0
    assert counted // block_steps <= MOST_BLOCKS
    assert block_steps >= (LEAST_BLOCK if steps >= LEAST_BLOCK * ALTERNATE else SHORT_BLOCK)
    toggle_schedule(("a",), Plan(3, counted, 9.0), block_steps, "seed")


@pytest.mark.parametrize(("steps", "block_steps"), [(79, 10), (80, SETTLING), (80, None)])
def test_steps_that_cannot_be_halved_are_refused(steps: int, block_steps: int | None) -> None:
    with pytest.raises(UsageError, match="cannot be halved"):
        toggle_schedule(("a",), Plan(3, steps, 9.0), block_steps, "seed")


@pytest.mark.parametrize("period", [1, 3, 5, 10, 240])
@pytest.mark.parametrize("steps", [39, 80, 240, 1000, 5000])
def test_blocks_of_what_acts_every_so_many_steps_hold_as_many_of_its_acts(
    steps: int, period: int
) -> None:
    block_steps = block_steps_for(steps, period)
    if block_steps is None:
        assert steps < (period + SHORT_BLOCK) * ALTERNATE
        return
    assert block_steps % period == 0
    counted = counted_in_blocks(steps, block_steps)
    assert 0 < counted <= steps
    schedule = toggle_schedule(("a",), Plan(3, counted, 9.0), block_steps, "seed", settling=0)
    assert all(schedule.counts(3 + step) for step in range(counted))
    acts = [schedule.is_on(step) for step in range(3, 3 + counted) if step % period == 0]
    assert acts.count(True) == acts.count(False)


def test_halves_are_the_steps_without_and_those_with() -> None:
    plan = Plan(3, 80, 9.0)
    schedule = toggle_schedule(("a",), plan, 10, "seed")
    records = tuple(
        StepRecord(
            step,
            0.1 if schedule.is_on(step) else 0.2,
            tags=("warmup",) if step < 3 else ("gc",),
        )
        for step in range(83)
    )
    measured = Measurement("with", ("python",), plan, ENVIRONMENT, records)
    off, on = halves(measured, schedule, "baseline")
    assert (off.arm, on.arm) == ("baseline", "with")
    assert {each.wall_s for each in off.counted()} == {0.2}
    assert {each.wall_s for each in on.counted()} == {0.1}
    assert len(off.counted()) == len(on.counted()) == 4 * (10 - SETTLING)
    assert [each.step for each in off.records] == list(range(83))
    assert off.records[0].tags == ("warmup",)
    first, second = off_halves(measured, schedule)
    steps = [{each.step for each in half.counted()} for half in (first, second)]
    assert len(steps[0]) == len(steps[1])
    assert steps[0] | steps[1] == {each.step for each in off.counted()}
