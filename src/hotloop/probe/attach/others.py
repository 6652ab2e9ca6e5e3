"""A process that trains beside the one that is watched, without a rank of its own: only its updates are counted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from hotloop.probe.step_rule import StepRule


class OtherTraining:
    """Counts its steps; keeps `other-<pid>.json` up to date."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"other-{os.getpid()}.json"
        self._pid = os.getpid()
        self._rule = StepRule()
        self._num, self._written = 1, 0
        """The first was made when the update asked to be a step."""

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer of this process has stepped."""
        if os.getpid() != self._pid:
            return
        self._rule.updated(optimizer)
        self._num = 1 + self._rule.steps
        if self._num >= 2 * self._written:  # a process may be killed, and a write costs time
            self.write()

    def write(self) -> None:
        """So many so far."""
        if self._num == self._written or os.getpid() != self._pid:
            return
        self._written = self._num
        try:
            self._path.write_text(json.dumps({"steps": self._num}), encoding="utf-8")
        except OSError:
            pass
