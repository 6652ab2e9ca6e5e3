"""Turning the filling of uninitialized memory off in a running script."""

from __future__ import annotations

from typing import Any

import torch

from hotloop.optimizations.hooks import after_first_step
from hotloop.optimizations.live_report import Report, has_accelerator


def apply(value: Any, report: Report) -> None:
    """Turn it off now; it says so once a step ran with deterministic algorithms, unless the script set it itself."""
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = value

    def toggle(on: bool) -> None:
        deterministic.fill_uninitialized_memory = value if on else not value

    def step_ended(optimizer: torch.optim.Optimizer | None) -> None:
        if deterministic.fill_uninitialized_memory != value:
            report.refused("the script sets fill_uninitialized_memory")
        elif torch.are_deterministic_algorithms_enabled():
            report.applied("memory just allocated", toggle=None if has_accelerator() else toggle)
        else:
            report.refused("the script asks for no deterministic algorithms")

    after_first_step(step_ended, report)
