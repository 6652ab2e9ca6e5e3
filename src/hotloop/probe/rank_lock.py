"""A lock file decides which process of a rank is watched; others that train beside it are only counted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from hotloop.probe.step_rule import StepRule

_WEAK = " weak"


class RankLock:
    """The lock file of a rank. A process that updates weights takes it from one that was not seen to."""

    def __init__(self, directory: Path, rank: str) -> None:
        self._path = directory / f"claim-{rank}"
        self._steps = directory / f"steps-{rank}.jsonl"
        self._mine = str(os.getpid())

    def acquire(self, *, proven: bool) -> bool:
        """True where it is this process's from here on, or was already. proven: it updates weights."""
        text = self._mine + ("" if proven else _WEAK)
        try:
            with self._path.open("x") as file:
                file.write(text)
            return True
        except FileExistsError:
            held = self._read()
        except OSError:
            return False
        if held.partition(" ")[0] != self._mine:
            if not (proven and held.endswith(_WEAK)):
                return False
            self._steps.unlink(missing_ok=True)  # they were no steps of a training
        temporary = self._path.with_suffix(f".{self._mine}")
        temporary.write_text(text)
        os.replace(temporary, self._path)
        return True

    def is_held(self) -> bool:
        """True while no other process has taken it."""
        return self._read().partition(" ")[0] == self._mine

    def _read(self) -> str:
        try:
            return self._path.read_text()
        except OSError:
            return ""


class UnrankedTraining:
    """A process without a rank of its own: only its steps are counted, in `other-<pid>.json`."""

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
