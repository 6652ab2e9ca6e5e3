"""A single run in one sentence, whatever is known of it."""

from __future__ import annotations

import typing

import pytest

from hotloop.core.course import Pace
from hotloop.report.words import run_answer
from hotloop.runs.stored_run import State

PACE = Pace("token", 5290.0, 5100.0, 5410.0, 990)
TIME = {"data_wait": 0.02, "forward": 0.4, "backward": 0.52, "optimizer": 0.06}


def test_finished_run_says_how_fast_what_it_learned_and_where_its_time_went() -> None:
    text = run_answer(
        done=1000, planned=1000, state="finished", pace=PACE, loss=3.212, held_out=3.301, breakdown=TIME
    )  # fmt: skip
    assert text == (
        "Finished: 1,000 steps, 5.29 K tokens/s in the median step (nine in ten: 5.10 K to 5.41 K), loss 3.2120 and "
        "held-out loss 3.3010; forward, backward and optimizer took 98 % of the time."
    )


@pytest.mark.parametrize(
    ("state", "start"),
    [
        ("running", "Running: 612 of 1,000 steps so far"),
        ("stopped", "Stopped after 612 of 1,000 steps"),
        ("recorded", "Recorded: 612 steps"),
    ],
)
def test_unfinished_run_is_never_called_finished(state: str, start: str) -> None:
    text = run_answer(
        done=612, planned=1000, state=state, pace=None, loss=None, held_out=None, breakdown={}
    )
    assert text == f"{start}."


@pytest.mark.parametrize("state", typing.get_args(State))
def test_no_step_has_no_numbers(state: str) -> None:
    text = run_answer(
        done=0, planned=9, state=state, pace=None, loss=None, held_out=None, breakdown={}
    )
    assert text.endswith("recorded.") or text.endswith("recorded yet.")
    assert not any(character.isdigit() for character in text)
