"""Steps of a foreign script: an update by the first optimizer that made one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from hotloop.optimizations.live_report import Report
from hotloop.probe.entry import after_step, before_step

StepEnded = Callable[[int, torch.optim.Optimizer], None]


class StepCount:
    """Which updates end a step, and how many have."""

    def __init__(self) -> None:
        self._first: weakref.ref[torch.optim.Optimizer] | None = None
        self._number = 0

    def of(self, optimizer: torch.optim.Optimizer) -> int | None:
        """The step that this update ended, 1 for the first of this process; `None` if it is another's."""
        carrier = self._first() if self._first is not None else None
        if carrier is None:
            self._first = weakref.ref(optimizer)
        elif carrier is not optimizer:
            return None
        self._number += 1
        return self._number


def at_step_end(action: StepEnded, report: Report) -> None:
    """Call `action(number, optimizer)` at the end of every step, 1 for the first of this process.

    Where it fails it is refused, and called no more: the script goes on.
    """
    count = StepCount()
    works = True

    def stepped(optimizer: torch.optim.Optimizer) -> None:
        nonlocal works
        if not works or (number := count.of(optimizer)) is None:
            return
        try:
            action(number, optimizer)
        except Exception as error:  # noqa: BLE001
            works = False
            report.refused(f"{type(error).__name__}: {error}")

    after_step(stepped)


def at_step_start(action: Callable[[torch.optim.Optimizer], None], report: Report) -> None:
    """Call `action(optimizer)` before the first update by each optimizer."""
    seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def stepping(optimizer: torch.optim.Optimizer) -> None:
        if optimizer in seen:
            return
        seen.add(optimizer)
        try:
            action(optimizer)
        except Exception as error:  # noqa: BLE001
            report.refused(f"{type(error).__name__}: {error}")

    before_step(stepping)


def device_type_of(optimizer: torch.optim.Optimizer) -> str:
    """Of its first weight."""
    parameters: Any = (each for group in optimizer.param_groups for each in group["params"])
    return next((parameter.device.type for parameter in parameters), "cpu")
