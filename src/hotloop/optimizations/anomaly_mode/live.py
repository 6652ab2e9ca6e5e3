"""Leaving autograd's anomaly detection off in a running script that turns it on."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import detect_anomaly, set_detect_anomaly

from hotloop.optimizations.live_report import Report, has_accelerator
from hotloop.probe.entry import around_call

CALLED = "set_detect_anomaly"


def apply(value: Any, report: Report) -> None:
    """Both of torch's ways to turn it on do all else that they do, such as to put back what was before.

    Where it is turned on once, and not for a block, it can be toggled.
    """
    asked, off = False, not value

    def toggle(on: bool) -> None:
        nonlocal off
        off = on
        torch.set_anomaly_enabled(asked and not off, torch.is_anomaly_check_nan_enabled())

    def set_mode(original: Any, block: Any, mode: bool, *args: Any, **kwargs: Any) -> None:
        nonlocal asked
        original(block, mode and not off, *args, **kwargs)
        if mode:
            first = not asked and not has_accelerator()
            report.applied(CALLED, toggle=toggle if first else None, called=CALLED)
        asked = mode

    def enter_set(original: Any, block: Any) -> None:
        report.offer(None)

    def enter(original: Any, block: Any) -> None:
        report.applied("detect_anomaly", called="detect_anomaly")

    around_call(set_detect_anomaly, "__init__", set_mode)
    around_call(set_detect_anomaly, "__enter__", enter_set)  # of torch's own it does nothing
    around_call(detect_anomaly, "__enter__", enter)
