"""Leaving variables for debugging out of a process that has just imported torch. `CUDA_LAUNCH_BLOCKING`: run on an H100, torch 2.11."""

from __future__ import annotations

import os
from typing import Any

import torch

from hotloop.optimizations.debug_environment import VARIABLES
from hotloop.optimizations.hooks import after_first_step
from hotloop.optimizations.live_report import Report


def apply(value: Any, report: Report) -> None:
    """CUDA reads its variable when it starts, which importing torch does not; torch.distributed has read its own."""
    distributed: Any = torch.distributed
    found = [name for name in VARIABLES if os.environ.pop(name, None) is not None]
    if distributed.is_available():
        distributed.set_debug_level_from_env()

    def step_ended(optimizer: torch.optim.Optimizer | None) -> None:
        for name in VARIABLES:
            if name in os.environ:
                report.refused(f"the script sets {name} after it imported torch")
            elif name in found:
                report.applied(name, variable=name)

    after_first_step(step_ended, report)
