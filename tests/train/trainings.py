"""Trainings in this process, what they leave behind, and a finished one made as if it had been killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from hotloop.checkpoint import store
from hotloop.checkpoint.state import FILES
from hotloop.core.settings import load_settings
from hotloop.core.step import StepRecord, read_steps, steps_name
from hotloop.train.start import Finished, start


def train(config: Path, directory: Path, *overrides: str, **options: Any) -> Finished:
    return start(load_settings(config, overrides), directory, **options)


def records(directory: Path, rank: int = 0) -> list[StepRecord]:
    return list(read_steps(directory / steps_name(rank)))


def losses(directory: Path, rank: int = 0) -> list[float | None]:
    return [record.loss for record in records(directory, rank)]


def saved(directory: Path, *more: str) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """The tensors of the newest checkpoint, by file, and its state."""
    found, _ = store.latest(directory / "checkpoints")
    assert found is not None
    return store.load(found, (*FILES, *more))


def weights(directory: Path, *more: str) -> dict[str, dict[str, torch.Tensor]]:
    return saved(directory, *more)[0]


def scalars(directory: Path, name: str) -> list[tuple[int, float]]:
    """Steps and values of a curve that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def wait_for_steps(child: subprocess.Popen[str], file: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while child.poll() is None and time.monotonic() < deadline:
        if file.exists() and len(file.read_bytes().splitlines()) >= count:
            return
        time.sleep(0.02)
    child.kill()
    raise AssertionError(f"no {count} steps: {child.communicate()}")


def killed_after(directory: Path, *, step: int) -> None:
    """As if it had been killed right after its checkpoint of `step`."""
    for path in (directory / "checkpoints").glob("step-*"):
        if int(path.name.split("-")[1]) > step:
            shutil.rmtree(path)
    for file in directory.glob("steps*.jsonl"):
        _keep(file, below=step)
    _keep(directory / "evals.jsonl", below=step + 1)


def _keep(file: Path, *, below: int) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if json.loads(line)["step"] < below))
