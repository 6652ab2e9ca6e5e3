"""TensorBoard event files, in the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotloop.train.scalars import SECONDS
from hotloop.train.tracker import Point

EVENTS = "tensorboard"
"""Directory of the event files."""


class TensorboardTracker:
    def __init__(self, directory: Path, *, first_step: int) -> None:
        self._path = str(directory / EVENTS)
        self._newest = first_step - 1
        self._writer: Any = None

    def open(self) -> None:
        self._begin(self._newest + 1)

    def send(self, points: list[Point]) -> None:
        for point in points:
            if SECONDS in point.values:  # a step; an evaluation has the number of the one before it
                if point.step <= self._newest:
                    self._writer.close()
                    self._begin(point.step)
                self._newest = point.step
            for name, value in point.values.items():
                self._writer.add_scalar(name, value, point.step)

    def close(self, exit_code: int) -> None:
        self._writer.close()

    def _begin(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that are made once more, after a kill or a rollback, replace those drawn before.
        self._writer = SummaryWriter(self._path, purge_step=step)
