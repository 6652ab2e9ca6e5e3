"""Moving the garbage collections of a running script between its steps."""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch

from hotloop.optimizations.hooks import at_step_end, optimizer_device_type
from hotloop.optimizations.live_report import Report
from hotloop.probe.machine import host_peak_bytes

FIRST_STEPS = 3
"""After which what is alive is there to stay: optimizer state, loaders, compiled code."""
LOOK_EVERY = 25
"""Steps between two looks at the memory, each of which takes some 50 us."""
GROWN_TIMES, GROWN_BYTES = 1.25, 256 << 20
"""From when on memory has grown."""
NEVER = 1_000_000_000
"""As the number of younger collections after which Python makes a full one by itself."""


class Schedule:
    """The collections of one process: `every` steps between full collections."""

    def __init__(self, every: int, report: Report) -> None:
        self._every = every
        self._report = report
        self._thresholds = gc.get_threshold()
        self._frozen = gc.get_freeze_count()
        self._begun = False
        self._memory: int | None = None

    def step_ended(self, number: int, optimizer: torch.optim.Optimizer | None) -> None:
        """Between two steps of the script."""
        if number == FIRST_STEPS and not self._begun:
            self._begin(optimizer)
        elif self._begun and number % LOOK_EVERY == 0 and self._has_grown(optimizer):
            self._freeze(optimizer)
        elif self._begun and number % self._every == 0:
            gc.collect()

    def _begin(self, optimizer: torch.optim.Optimizer | None) -> None:
        why = self._why_not()
        if why is not None:
            self._report.refused(why)
            return
        self._freeze(optimizer)
        gc.set_threshold(*self._thresholds[:2], NEVER)
        self._begun = True
        self._report.applied(
            f"{gc.get_freeze_count()} objects frozen after step {FIRST_STEPS}, "
            f"full collections at the end of every {self._every}th step"
        )

    def _why_not(self) -> str | None:
        if not gc.isenabled():
            return "the script has turned automatic collections off"
        if gc.get_threshold() != self._thresholds:
            return f"the script chose when to collect: {gc.get_threshold()}"
        if gc.get_freeze_count() != self._frozen:
            return "the script freezes objects itself"
        return None

    def _freeze(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Everything that is alive; what was frozen and is garbage by now goes."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._memory = _memory(optimizer)

    def _has_grown(self, optimizer: torch.optim.Optimizer | None) -> bool:
        now = _memory(optimizer)
        if now is None or self._memory is None:
            return True  # not known: look at everything, as Python itself would
        return now > max(GROWN_TIMES * self._memory, self._memory + GROWN_BYTES)


def _memory(optimizer: torch.optim.Optimizer | None) -> int | None:
    """Bytes of tensors on the optimizer's device, or the most that the process ever took."""
    if optimizer_device_type(optimizer) == "cuda":
        return torch.cuda.memory_allocated()
    return host_peak_bytes()


def apply(value: Any, report: Report) -> None:
    """Freeze after the first steps, unless the script has a schedule of its own."""
    if sys.version_info >= (3, 14):
        report.refused("this Python collects in small pieces: there is nothing to move")
        return
    at_step_end(Schedule(int(value), report).step_ended, report)
