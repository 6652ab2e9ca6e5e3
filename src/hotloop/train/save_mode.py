"""Whether checkpoints are written beside the steps, as `checkpoint.background: auto` measures it while training.

The first saves are made in both ways, in turns. What one costs is what it holds the steps up, what the next save has to wait
for it, and what the steps between the two take longer at first than at the end. The cheaper way is kept.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

from hotloop.core.step import StepRecord
from hotloop.hardware.limits import memory_limit_bytes

if TYPE_CHECKING:
    from hotloop.train.run import Run

TRIES = 2
"""Saves of each kind before one is chosen."""
SPARE = 1.5
"""Free memory that a copy of the state needs, over its size."""


class SaveMode:
    """An observer, too: step records say what the saves cost."""

    def __init__(self, run: Run) -> None:
        self._run, self._setting = run, run.config.checkpoint.background
        self.costs_s: dict[bool, list[float]] = {False: [], True: []}
        """Of the saves so far, by whether they were written beside the steps."""
        self._open: bool | None = None
        """How the save was made whose cost is still being seen."""
        self._held_s = self._waited_s = 0.0
        self._since: list[float] = []

    def __call__(self, record: StepRecord) -> None:
        if "checkpoint" in record.tags:
            self._held_s = record.host.get("checkpoint", 0.0) - self._waited_s
            self._since = []
            return
        waited_s = record.host.get("checkpoint", 0.0)
        self._held_s += waited_s
        self._since.append(record.wall_s - waited_s - record.host.get("eval", 0.0))

    def will_be_beside(self) -> bool:
        """How the next save will be made, by what the ones before have shown; the newest of them may change that."""
        if self._setting != "auto":
            return bool(self._setting)
        made = {mode: len(costs) + (self._open is mode) for mode, costs in self.costs_s.items()}
        if min(made.values()) < TRIES:
            return self._fits() and made[True] < made[False]
        return self._next()

    def beside(self) -> bool:
        """How the save that is due is made. Waits for the one before. Raises its error."""
        if self._setting != "auto":
            return bool(self._setting)
        began = time.perf_counter()
        self._run.saver.finish()
        self._waited_s = time.perf_counter() - began
        self._close()
        self._open = self._next()
        return self._open

    def _close(self) -> None:
        """Book the cost of the save before. A process's first steps are slow, and none precede its first save."""
        if self._open is None:
            return
        half = len(self._since) // 2
        slower_s = sum(self._since[:half]) - sum(self._since[-half:]) if half else 0.0
        self.costs_s[self._open].append(self._held_s + self._waited_s + max(slower_s, 0.0))

    def _next(self) -> bool:
        if not self._fits():
            return False
        known = {
            mode: sorted(costs)[len(costs) // 2] for mode, costs in self.costs_s.items() if costs
        }
        if min(map(len, self.costs_s.values())) < TRIES:
            return len(self.costs_s[True]) < len(self.costs_s[False])
        return known[True] < known[False]

    def _fits(self) -> bool:
        """Whether host memory holds the state once more."""
        own = (
            psutil.Process().memory_info().rss
        )  # a control group counts cached files, which give way
        free = min(psutil.virtual_memory().available, memory_limit_bytes() - own)
        return free > SPARE * self._run.state_bytes
