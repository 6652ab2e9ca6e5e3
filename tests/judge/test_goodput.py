"""Classes of time over all processes of a training, from what they recorded."""

from __future__ import annotations

import math

import pytest

from hotloop.core.sessions import Session
from hotloop.core.step import StepRecord
from hotloop.judge.goodput import goodput


def step(number: int, wall_s: float = 2.0, **host: float) -> StepRecord:
    return StepRecord(step=number, wall_s=wall_s, host=host)


FIRST = Session(process_at=100, at=103, from_step=0, made_s=0, lost_s=0, lost_steps=0)


def trained(session: Session, at: float, **fields: object) -> Session:
    from dataclasses import replace

    return replace(session, first_step_at=at, **fields)


def test_a_training_in_one_go_is_divided_by_its_phases() -> None:
    one = trained(FIRST, 104.0, ended_at=115.0, why="finished", host={"checkpoint": 1.5, "eval": 1})
    records = [step(0, data_wait=0.5), step(1, checkpoint=0.75), step(2, eval=0.25), step(3)]
    found = goodput([one], records)
    assert found is not None
    assert found.seconds == pytest.approx(
        {
            "productive": 8 - 1.5,
            "data_wait": 0.5,
            "checkpoint": 0.75 + 1.5,
            "evaluation": 0.25 + 1,
            "startup": 4,
            "restart": 0,
            "lost_progress": 0,
            "idle": 0,
            "other": 0.5,
        }
    )
    assert found.wall_s == pytest.approx(15.0)
    assert (found.processes, found.killed, found.lost_steps) == (1, 0, 0)


def test_after_kills_lost_steps_and_the_time_between_processes_are_told_apart() -> None:
    """Killed after steps 0 to 4; the next one is killed before a step, the third makes 3 and 4 again."""
    killed = trained(FIRST, 104.0)
    tells = {"from_step": 3, "made_s": 10.0, "lost_s": 4.0, "lost_steps": 2}
    without = Session(process_at=130, at=133, **tells)  # type: ignore[arg-type]
    last = trained(Session(process_at=140, at=143, **tells), 144.0, ended_at=153.0)  # type: ignore[arg-type]
    found = goodput([killed, without, last], [step(n) for n in range(7)])
    assert found is not None
    assert found.seconds["productive"] == 14
    assert found.seconds["lost_progress"] == 4
    assert found.seconds["startup"] == 4
    assert found.seconds["restart"] == 3 + 4
    assert found.seconds["idle"] == (130 - 114) + (140 - 133)
    assert found.seconds["other"] == pytest.approx(1.0)
    assert found.wall_s == math.fsum(found.seconds.values()) == pytest.approx(53.0)
    assert (found.processes, found.killed, found.lost_steps) == (3, 2, 2)


def test_the_second_of_two_that_made_no_step_may_find_the_lost_records_gone() -> None:
    first_told = Session(process_at=130, at=133, from_step=3, made_s=10, lost_s=4, lost_steps=2)
    cut = trained(
        Session(process_at=140, at=143, from_step=3, made_s=6, lost_s=0, lost_steps=0), 144.0
    )
    found = goodput([trained(FIRST, 104.0), first_told, cut], [step(n) for n in range(3)])
    assert found is not None
    assert found.seconds["lost_progress"] == 4
    assert found.seconds["idle"] == (130 - 114) + (140 - 133)
    assert found.wall_s == pytest.approx(144 - 100)


def test_what_going_back_from_a_spike_undid_is_lost_progress() -> None:
    one = trained(FIRST, 104.0, rolled_back_s=3.0, ended_at=115.0)
    found = goodput([one], [step(n) for n in range(4)])
    assert found is not None
    assert found.seconds["lost_progress"] == 3
    assert found.seconds["productive"] == 8
    assert found.wall_s == pytest.approx(15.0)


def test_a_clock_that_was_set_back_makes_no_class_negative() -> None:
    early = trained(
        Session(process_at=20, at=23, from_step=2, made_s=4, lost_s=0, lost_steps=0), 24.0
    )
    found = goodput([trained(FIRST, 104.0), early], [step(n) for n in range(4)])
    assert found is not None
    assert min(found.seconds.values()) == 0
    assert found.seconds["productive"] == 8
    assert goodput([], []) is None
