"""Where the trainer's GPU tests train: on a GPU, or with HOTLOOP_TEST_DEVICE=cpu on the CPU as far as it can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hotloop.core.settings import load_settings
from hotloop.core.step import StepRecord, read_steps
from hotloop.train.start import start

DEVICE = os.environ.get("HOTLOOP_TEST_DEVICE", "cuda")
ON_GPU = DEVICE != "cpu"
MARKS = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings(
        "default::UserWarning"
    ),  # what torch says of a GPU is shown, and ends nothing
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="needs a CUDA device"),
]
only_there = pytest.mark.skipif(not ON_GPU, reason="a GPU alone has it")


def records(config: Path, directory: Path, *overrides: str) -> list[StepRecord]:
    """Of a training in this process. Nothing compiled for an earlier one is used: torch would, for a model of the same shape."""
    torch._dynamo.reset()
    start(load_settings(config, [f"train.device={DEVICE}", *overrides]), directory)
    return list(read_steps(directory / "steps.jsonl"))


def losses(config: Path, directory: Path, *overrides: str) -> list[float]:
    found = [each.loss for each in records(config, directory, *overrides)]
    return [loss for loss in found if loss is not None]
