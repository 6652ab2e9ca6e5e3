"""Turning cuDNN's benchmark on in a running script. Run on an H100, torch 2.11."""

from __future__ import annotations

from typing import Any

import torch

from hotloop.optimizations.hooks import TORCH, after_first_step, optimizer_device_type
from hotloop.optimizations.live_report import Report
from hotloop.probe.attach.sites import caller, file_and_line


def apply(value: Any, report: Report) -> None:
    """Turn cuDNN's benchmark on after the first step, unless the script itself has set it by then."""
    flag = vars(type(torch.backends.cudnn))["benchmark"]
    turn = flag.setter
    chosen: list[str] = []

    def chose(wanted: bool) -> None:
        frame = caller(passing=(TORCH,))
        chosen.append(f"the script sets cudnn.benchmark = {wanted} at {file_and_line(frame)}")
        report.refused(chosen[-1])
        turn(wanted)

    def step_ended(optimizer: torch.optim.Optimizer | None) -> None:
        if chosen:
            return
        why = None
        if optimizer_device_type(optimizer) != "cuda":
            why = "the model does not run on a CUDA device"
        elif torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
            why = "the script asks for deterministic algorithms"
        if why is not None:
            report.refused(why)
            return
        turn(True)
        report.applied("convolutions from the second step on")

    flag.setter = chose
    after_first_step(step_ended, report)
