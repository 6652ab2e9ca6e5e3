"""Trainings forked from a process that holds the trainer, in place of fresh ones: a fork is killed like any process."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["hotloop.train.start", "torch._dynamo", "hotloop.cli.train"])


FAULT = "FAULT_OF_THE_TRAINER"
"""In the environment: what a training that continues gets wrong, one of `samples`, `random`, `optimizer`, `model`."""
HELD = "STEP_TO_HOLD_AT"
"""In the environment: the step whose update is never made."""
PAST = 5
"""Steps that a training may come further than the one it is to be killed at, so that it is killed at any moment of a step."""


class Forked:
    """One of them, with what `resume.kills` asks of a process."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


def launch(command: Sequence[str], env: Mapping[str, str], log: Path) -> Forked:
    """As `resume.kills.launch`."""
    assert list(command[1:3]) == ["-m", "hotloop"], "torchrun starts fresh processes"
    process = _CONTEXT.Process(target=_become, args=(list(command[3:]), dict(env), str(log)))
    process.start()
    return Forked(process)


def killed_at(config: Path, directory: Path, step: int, *overrides: str) -> None:
    """Trains in `directory` until this step is recorded; then it is killed."""
    words = ["-m", "hotloop", "train", str(config), "--out", str(directory), *overrides]
    log = directory.with_suffix(".log")
    process = launch(["python", *words], {**os.environ, HELD: str(step + PAST)}, log)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and not _recorded(directory, step):
        time.sleep(0.001)
    os.killpg(process.pid, 9)
    assert process.wait() == -9, log.read_text()


def _recorded(directory: Path, step: int) -> bool:
    path = directory / "steps.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return bool(lines) and json.loads(lines[-1])["step"] >= step


def _become(arguments: list[str], env: dict[str, str], log: str) -> None:
    os.setsid()
    os.environ.update(env)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["hotloop", *arguments]
    directory = Path(arguments[arguments.index("--out") + 1])
    _plant(env.get(FAULT, ""), directory)
    if HELD in env:
        _hold(int(env[HELD]))
    from hotloop.cli.main import run

    sys.stdout.flush()
    os._exit(run(arguments))


def _hold(step: int) -> None:
    """Whoever kills it may come late: it waits for that."""
    from hotloop.train import loop

    update = loop.update

    def held(run: Any, *args: Any) -> Any:
        if run.watchdog.step >= step:
            time.sleep(3600)
        return update(run, *args)

    loop.update = held


def _plant(fault: str, directory: Path) -> None:
    import torch

    from hotloop.checkpoint import state
    from hotloop.train import text_work

    read_step, restore = text_work.read_step, state.restore

    def read_the_next_step(config: Any, batches: Any, position: int, **options: Any) -> Any:
        return read_step(config, batches, position + config.sequences_per_step, **options)

    def restore_otherwise(*arguments: Any, model: Any, optimizer: Any, **options: Any) -> None:
        restore(*arguments, model=model, optimizer=optimizer, **options)
        weight = next(iter(model.parameters()))
        if fault == "random":
            torch.manual_seed(99)
        elif fault == "optimizer":
            optimizer.state[weight]["exp_avg"].zero_()
        elif fault == "model":
            weight.data.mul_(1.001)

    if fault == "samples" and (directory / "steps.jsonl").exists():
        text_work.read_step = read_the_next_step
    state.restore = restore_otherwise
