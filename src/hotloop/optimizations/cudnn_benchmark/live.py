"""Turning cuDNN's benchmark on in a running script. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from hotloop.optimizations.by_step import at_step_end, device_type_of
from hotloop.optimizations.callers import TORCH, caller, place
from hotloop.optimizations.live_report import Report


def apply(value: Any, report: Report) -> None:
    """Turn cuDNN's benchmark on after the first step, unless the script itself has set it by then."""
    flag = vars(type(torch.backends.cudnn))["benchmark"]
    turn = flag.setter
    chosen: list[str] = []

    def chose(wanted: bool) -> None:
        frame = caller(passing=(TORCH,))
        chosen.append(f"the script sets cudnn.benchmark = {wanted} at {place(frame)}")
        report.refused(chosen[-1])
        turn(wanted)

    def step_ended(number: int, optimizer: torch.optim.Optimizer | None) -> None:
        if number != 1 or chosen:
            return
        why = None
        if device_type_of(optimizer) != "cuda":
            why = "the model does not run on a CUDA device"
        elif torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
            why = "the script asks for deterministic algorithms"
        if why is not None:
            report.refused(why)
            return
        turn(True)
        report.applied("convolutions from the second step on")

    flag.setter = chose
    at_step_end(step_ended, report)
