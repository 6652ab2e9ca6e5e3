"""Checkpoints that are written while the next steps train: the same ones, and a killed run continues from one."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_trainings import killed_at
from trainings import losses, records, train, weights

from hotloop.checkpoint import store
from hotloop.checkpoint.background import Saver
from hotloop.core.errors import EnvironmentFailed
from hotloop.train import loop, save_times

BESIDE = ("checkpoint.every_steps=6", "checkpoint.keep=9", "checkpoint.background=true", "model.dropout=0.1")  # fmt: skip
"""The first save is due after half of it."""
WITHIN = (*BESIDE, "checkpoint.every_steps=3", "checkpoint.background=false")


def states(directory: Path) -> dict[int, tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]]:
    """Tensors and state of each checkpoint, by step."""
    root = directory / "checkpoints"
    found = {step: store.of_step(root, step) for step in store.steps(root)}
    return {
        step: store.load(each, ("model", "optimizer", "random")) for step, each in found.items()
    }


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`behind(n)`: a save beside the steps begins to write only when n more updates were made, and the next is due after
    half of the interval: it is taken for one that is written slowly, whatever the clock says."""
    updated = threading.Condition()
    made = 0

    def late(updates: int) -> None:
        real_save, real_update = store.save, loop.update
        monkeypatch.setattr(save_times, "MARGIN", 1e9)

        def update(*args: Any) -> Any:
            nonlocal made
            with updated:
                made += 1
                updated.notify_all()
            return real_update(*args)

        def save(root: Path, step: int, **named: Any) -> store.Checkpoint:
            if threading.current_thread() is not threading.main_thread():
                with updated:
                    assert updated.wait_for(lambda: made >= step + updates, timeout=60)
            return real_save(root, step, **named)

        monkeypatch.setattr(loop, "update", update)
        monkeypatch.setattr(store, "save", save)

    return late


def test_what_is_saved_is_the_state_of_its_step_however_late_it_is_written(
    tiny_config: Path, tmp_path: Path, behind: Callable[[int], None]
) -> None:
    train(tiny_config, tmp_path / "within", *WITHIN)
    behind(2)
    train(tiny_config, tmp_path / "beside", *BESIDE)
    one, other = states(tmp_path / "within"), states(tmp_path / "beside")
    assert one.keys() == other.keys() == {3, 6, 9, 12}
    for step, (tensors, state) in one.items():
        assert state == other[step][1]
        for file, group in tensors.items():
            for name, value in group.items():
                assert torch.equal(value, other[step][0][file][name]), (step, file, name)
    assert losses(tmp_path / "within") == losses(tmp_path / "beside")


def test_save_that_fails_beside_the_steps_ends_the_training_at_the_next_one_and_it_continues(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = store.save, threading.Event()

    def save(root: Path, step: int, **named: Any) -> store.Checkpoint:
        if step == 3:
            return real(root, step, **named)
        failed.set()
        raise EnvironmentFailed("the disk is full", where=str(root))

    real_update = loop.update

    def update(*args: Any) -> Any:
        if sum("checkpoint" in each.tags for each in records(tmp_path / "run")) > 1:
            assert failed.wait(60)
        return real_update(*args)

    with monkeypatch.context() as patch:
        patch.setattr(store, "save", save)
        patch.setattr(loop, "update", update)
        with pytest.raises(EnvironmentFailed, match="the disk is full"):
            train(tiny_config, tmp_path / "run", *BESIDE)
    assert store.steps(tmp_path / "run" / "checkpoints") == (3,)
    assert len(records(tmp_path / "run")) <= 9
    train(tiny_config, tmp_path / "run", *BESIDE)
    train(tiny_config, tmp_path / "whole", *WITHIN)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_run_killed_again_and_again_between_and_during_saves_comes_to_the_same_end(
    tiny_config: Path, tmp_path: Path
) -> None:
    often = (*BESIDE, "checkpoint.every_steps=7", "train.steps=200", "eval.every_steps=50")
    train(tiny_config, tmp_path / "whole", *often, "checkpoint.background=false")
    run, draw = tmp_path / "run", random.Random(5)
    for at in sorted(draw.sample(range(3, 190), 4)):
        killed_at(tiny_config, run, at, *often)
        assert len(records(run)) - store.newest_seen(run / "checkpoints") <= 7
    train(tiny_config, run, *often)
    assert losses(run) == losses(tmp_path / "whole")
    left, right = weights(run), weights(tmp_path / "whole")
    assert all(
        torch.equal(left[f][k], right[f][k]) for f in ("model", "optimizer") for k in left[f]
    )


def test_newest_save_that_never_ended_is_no_lost_checkpoint(
    tiny_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies_after: Callable[[int], AbstractContextManager[None]],
) -> None:
    """The step after its snapshot is recorded while it is written."""
    real = store.save

    def save(root: Path, step: int, **named: Any) -> store.Checkpoint:
        assert threading.current_thread() is not threading.main_thread()
        return real(root, step, **named) if step == 3 else store.Checkpoint(root, step, frozenset())

    with monkeypatch.context() as patch, dies_after(8):
        patch.setattr(store, "save", save)
        train(tiny_config, tmp_path / "run", *BESIDE)
    assert sum("checkpoint" in each.tags for each in records(tmp_path / "run")) == 2
    train(tiny_config, tmp_path / "run", *BESIDE)
    assert len(records(tmp_path / "run")) == 12


def test_one_save_waits_for_the_one_before_and_tells_its_error_once() -> None:
    saver, order, go_on = Saver(), [], threading.Event()

    def slow() -> None:
        assert go_on.wait(60)
        order.append("slow")
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    saver.begin(slow)
    saver.check()
    go_on.set()
    with pytest.raises(OSError, match="Input/output error"):
        saver.begin(lambda: order.append("never"))
    saver.begin(lambda: order.append("next"))
    saver.finish()
    assert order == ["slow", "next"]


def test_save_of_a_process_that_may_not_change_its_priority_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "setpriority", refused)
    made, saver = threading.Event(), Saver()
    saver.begin(made.set)
    saver.finish()
    assert made.is_set()


def test_save_is_waited_for_through_an_interrupt_which_is_then_raised() -> None:
    saver, order, interrupted = Saver(), [], threading.Event()
    waits = threading.Event()

    def interrupt() -> None:
        assert waits.wait(60)
        os.kill(os.getpid(), signal.SIGINT)  # the main thread has it, while it waits
        interrupted.set()

    def slow() -> None:
        assert interrupted.wait(60)
        time.sleep(0.3)  # who does not wait is gone by then
        order.append("saved")

    interrupting = threading.Thread(target=interrupt)
    saver.begin(slow)
    assert saver._ended is not None
    wait = saver._ended.wait

    def seen() -> bool:
        waits.set()
        return wait()

    saver._ended.wait = seen  # type: ignore[method-assign]
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        saver.wait()
    interrupting.join()
    assert order == ["saved"]


def test_run_that_was_finished_extended_and_killed_in_its_last_save_continues(
    tiny_config: Path, tmp_path: Path
) -> None:
    """One save beside the steps is recorded then, and the census is that of the shorter run."""
    steady = ("schedule.name=constant", "schedule.warmup_steps=0", "optimizer.weight_decay=0")
    run, longer = tmp_path / "run", (*BESIDE, *steady, "checkpoint.every_steps=20")
    train(tiny_config, run, *longer)
    train(tiny_config, run, *longer, "train.steps=24")
    shutil.rmtree(next((run / "checkpoints").glob("step-00000024-*")))
    train(tiny_config, run, *longer, "train.steps=24")
    assert len(records(run)) == 24
