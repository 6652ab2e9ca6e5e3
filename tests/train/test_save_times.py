"""`checkpoint.every_steps: auto` in real trainings: what it learns, and that a run still continues exactly."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_session_log import killed_at
from trainings import losses, records, train, weights

from hotloop.checkpoint import store
from hotloop.core.errors import UsageError
from hotloop.core.files import SESSIONS_FILE
from hotloop.core.sessions import SaveInterval, read_sessions
from hotloop.core.step import StepRecord
from hotloop.runs.stored_run import read_run
from hotloop.train import loop, save_times
from hotloop.train.group import Group
from hotloop.train.save_times import interval_steps

AUTO = (
    "checkpoint.every_steps=auto",
    "eval.every_steps=0",
    "train.steps=150",
    "checkpoint.background=false",
)


@pytest.fixture
def config(tiny_config: Path) -> Path:
    tiny_config.write_text(tiny_config.read_text().replace("  windows: 4\n", ""))
    return tiny_config


def saves(directory: Path) -> list[int]:
    """Steps that were preceded by a save."""
    return [record.step for record in records(directory) if "checkpoint" in record.tags]


def chosen(directory: Path) -> list[SaveInterval]:
    lines = [
        json.loads(line) for line in (directory / SESSIONS_FILE).read_bytes().split(b"\n") if line
    ]
    return [SaveInterval(**line["interval"]) for line in lines if "interval" in line]


def steps_of_a_second(monkeypatch: pytest.MonkeyPatch, *, save_s: float, slower_s: float) -> None:
    """By the clock of the loop: a save takes `save_s` more, and each of three steps from it on `slower_s`."""
    right, since = loop.PhaseClock.end_step, 100

    def end_step(clock: loop.PhaseClock) -> tuple[float, dict[str, float], int]:
        nonlocal since
        saved = "checkpoint" in right(clock)[1]
        since = 0 if saved else since + 1
        step_s = 1.0 + slower_s * (since < 3)
        return step_s + save_s * saved, {"checkpoint": save_s * saved}, 0

    monkeypatch.setattr(loop.PhaseClock, "end_step", end_step)


@pytest.mark.parametrize(
    ("save_s", "slower_s", "cost_s"), [(0.5, 0, 0.5), (4.5, 0, 4.5), (0.5, 0.5, 2.0)]
)
def test_after_two_saves_their_cost_and_the_rate_decide(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save_s: float,
    slower_s: float,
    cost_s: float,
) -> None:
    steps_of_a_second(monkeypatch, save_s=save_s, slower_s=slower_s)
    train(config, tmp_path / "run", *AUTO, "checkpoint.interruptions_per_day=1728")
    first, second, third, *_ = saves(tmp_path / "run")
    assert (first, second) == (save_times.FIRST_STEPS, 2 * save_times.FIRST_STEPS)
    seen = chosen(tmp_path / "run")
    assert third - second == seen[0].steps
    assert seen[-1].save_s == pytest.approx(cost_s)
    assert seen[-1].steps == interval_steps(cost_s, 1.0, 1728)
    found = read_run(tmp_path / "run").goodput
    assert found is not None
    assert found.interval == seen[-1]


def test_killed_runs_continue_to_the_same_bits_and_count_their_kills(
    config: Path, tmp_path: Path
) -> None:
    train(config, tmp_path / "whole", *AUTO, "checkpoint.every_steps=0")
    killed_at(config, tmp_path / "run", 50, *AUTO)
    killed_at(config, tmp_path / "run", 60, *AUTO)
    train(config, tmp_path / "run", *AUTO)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    one, other = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(one["model"][name].equal(other["model"][name]) for name in one["model"])
    sessions, _ = read_sessions(tmp_path / "run" / SESSIONS_FILE)
    assert [each.from_step for each in sessions] == [0, 40, 40], (
        "every 20 steps at first, then seldom"
    )
    assert sessions[-1].interval is not None
    assert sessions[-1].interval.interruptions_per_day == pytest.approx(3, rel=1e-2)


def test_evaluations_tell_of_a_lost_checkpoint_by_the_longest_interval(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of steps would tell, too: here evaluations are all there is."""
    monkeypatch.setattr(save_times, "interval_steps", lambda *_: 10)
    auto = ("checkpoint.every_steps=auto", "eval.every_steps=15")
    for steps, is_lost in ((save_times.FIRST_STEPS - 5, False), (3 * save_times.FIRST_STEPS, True)):
        run = tmp_path / str(steps)
        train(config, run, *auto, f"train.steps={steps}")
        shutil.rmtree(run / "checkpoints")
        (run / "steps.jsonl").unlink()
        (run / "census.json").unlink()
        if is_lost:
            with pytest.raises(UsageError, match="its checkpoints are gone"):
                train(config, run, *auto, f"train.steps={steps}")
        else:
            assert train(config, run, *auto, f"train.steps={steps}").steps == steps


def due_steps(
    *,
    every: int,
    took_s: float | None,
    background: Any = True,
    keep_best: int = 0,
    spikes: str = "warn",
) -> list[int]:
    """When saves of a training with steps of a second are due, each of which takes so long."""
    checkpoint = SimpleNamespace(every_steps=every, background=background, keep_best=keep_best)
    run: Any = SimpleNamespace(
        config=SimpleNamespace(checkpoint=checkpoint, stability=SimpleNamespace(spikes=spikes)),
        saver=SimpleNamespace(took_s=None),
        group=Group(),
        first_step=0,
        save_mode=SimpleNamespace(will_be_beside=lambda: background),
    )
    times, found = save_times.SaveTimes(run), []
    if spikes == "rollback":
        times.saved(3 * every)  # and went back to the start
    for step in range(4 * every):
        times(StepRecord(step=step, wall_s=1.0))
        if times.due(step + 1, now=False):
            found.append(step + 1)
            run.saver.took_s = took_s
            times.saved(step + 1)
    return found


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ({"every": 100, "took_s": 8.0}, [50, 139, 228, 317]),  # 100 - 1 - 1.25 * 8 apart
        ({"every": 100, "took_s": 0.01}, [50, 148, 246, 344]),
        ({"every": 100, "took_s": 500.0}, [50, 100, 150, 200, 250, 300, 350, 400]),
        ({"every": 100, "took_s": 8.0, "background": False}, [100, 200, 300, 400]),
        ({"every": 100, "took_s": 8.0, "keep_best": 1}, [100, 200, 300, 400]),
        ({"every": 100, "took_s": 8.0, "spikes": "rollback"}, [100, 200, 300, 400]),
        ({"every": 1, "took_s": 8.0}, [1, 2, 3, 4]),
    ],
)
def test_saves_beside_the_steps_begin_as_early_as_writing_takes(
    given: dict[str, Any], due: list[int]
) -> None:
    assert due_steps(**given) == due


def test_steps_wait_for_a_save_that_takes_longer_than_those_before(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, lost, real = [0], [0], store.save
    stand_still, held = threading.Event(), save_times.SaveTimes.held

    def is_held(self: save_times.SaveTimes, done: int) -> bool:
        if found := held(self, done):
            stand_still.set()
        return found

    def save(root: Path, step: int, **named: Any) -> store.Checkpoint:
        if len(made) == 3:
            stand_still.clear()  # the steps may have waited for a save before, on a slow disk
            assert stand_still.wait(120)
            lost.append(len(records(tmp_path / "run")) - made[-1])
        made.append(step)
        return real(root, step, **named)

    monkeypatch.setattr(save_times.SaveTimes, "held", is_held)
    monkeypatch.setattr(store, "save", save)
    beside = ("checkpoint.every_steps=200", "checkpoint.background=true", "eval.every_steps=0")
    train(config, tmp_path / "run", *beside, "train.steps=700")
    assert made[1] == 100
    assert 198 <= lost[1] <= 200, "the newest records are still on their way"
    assert made[-1] == 700


def test_a_rate_without_auto_is_refused(config: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="interruptions_per_day` has no effect"):
        train(config, tmp_path / "run", "checkpoint.interruptions_per_day=3")
