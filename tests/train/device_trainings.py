"""Trainings in this process where the GPU tests run (`gpu_or_cpu`)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import trainings

from gpu_or_cpu import DEVICE, ON_A_GPU
from hotloop.core.step import StepRecord

MARKS = [
    *ON_A_GPU,
    # What torch says of a GPU is shown, and ends nothing.
    pytest.mark.filterwarnings("default::UserWarning"),
]


def records(config: Path, directory: Path, *overrides: str) -> list[StepRecord]:
    """Of a training in this process. Nothing compiled for an earlier one is used: torch would, for a model of the same shape."""
    torch._dynamo.reset()
    trainings.train(config, directory, f"train.device={DEVICE}", *overrides)
    return trainings.records(directory)


def losses(config: Path, directory: Path, *overrides: str) -> list[float]:
    found = [each.loss for each in records(config, directory, *overrides)]
    return [loss for loss in found if loss is not None]
