"""What a technique does between the steps of a foreign script."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from hotloop.optimizations.live_report import Report
from hotloop.probe.entry import after_called_step, after_step, before_step
from hotloop.probe.step_rule import Ends, StepRule

StepEnded = Callable[[int, torch.optim.Optimizer | None], None]
"""Called with the number of steps so far, and the optimizer of the last update, where there was one."""


def after_each_step(action: StepEnded) -> None:
    """Call `action(number, optimizer)` at the end of every step, 1 for the first of this process."""
    rule = StepRule()
    last: weakref.ref[torch.optim.Optimizer] | None = None

    def updated(optimizer: torch.optim.Optimizer) -> None:
        nonlocal last
        if rule.updated(optimizer) is not Ends.NOTHING:
            action(rule.steps, optimizer)
        elif last is None or last() is not optimizer:
            last = weakref.ref(optimizer)

    def called() -> None:
        rule.called()
        action(rule.steps, last() if last is not None else None)

    after_step(updated)
    after_called_step(called)


def at_step_end(action: StepEnded, report: Report) -> None:
    """`after_each_step`, for a technique: where it fails it is refused, and called no more."""
    works = True

    def ended(number: int, optimizer: torch.optim.Optimizer | None) -> None:
        nonlocal works
        if not works:
            return
        try:
            action(number, optimizer)
        except Exception as error:  # noqa: BLE001
            works = False
            report.refused(f"{type(error).__name__}: {error}")

    after_each_step(ended)


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


def device_type_of(optimizer: torch.optim.Optimizer | None) -> str:
    """The device of its first weight; without an optimizer, of a GPU that is in use."""
    if optimizer is None:
        return "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
    parameters: Any = (each for group in optimizer.param_groups for each in group["params"])
    return next((parameter.device.type for parameter in parameters), "cpu")
