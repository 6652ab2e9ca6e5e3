"""Turning the filling of uninitialized memory off in a running script."""

from __future__ import annotations

from typing import Any

import torch

from hotloop.optimizations.hooks import at_step_end
from hotloop.optimizations.live_report import Report, has_accelerator


def apply(value: Any, report: Report) -> None:
    """Turn it off now; it says so once a step ran with deterministic algorithms, unless the script set it itself."""
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = value

    def toggle(on: bool) -> None:
        deterministic.fill_uninitialized_memory = value if on else not value

    def step_ended(number: int, optimizer: torch.optim.Optimizer | None) -> None:
        if number != 1:
            return
        if deterministic.fill_uninitialized_memory != value:
            report.refused("the script sets fill_uninitialized_memory")
        elif torch.are_deterministic_algorithms_enabled():
            report.applied("memory just allocated", toggle=None if has_accelerator() else toggle)
        else:
            report.refused("the script asks for no deterministic algorithms")

    at_step_end(step_ended, report)
