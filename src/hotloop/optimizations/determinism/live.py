"""A running script that asks for deterministic algorithms does not get them. Run on an H100, torch 2.11."""

from __future__ import annotations

from typing import Any

import torch

from hotloop.optimizations.live_report import Report
from hotloop.probe.entry import around_call


def apply(value: Any, report: Report) -> None:
    """Every way to ask torch for them asks for none instead."""

    def around(argument: str, off: Any) -> Any:
        def chose(original: Any, *args: Any, **kwargs: Any) -> None:
            wanted = kwargs.pop(argument) if argument in kwargs else args[0]
            if wanted in (0, "default"):
                original(wanted, *args[1:], **kwargs)
                return
            original(off, *args[1:], **kwargs)
            report.applied(original.__name__)

        return chose

    cudnn = vars(type(torch.backends.cudnn))
    around_call(torch, "use_deterministic_algorithms", around("mode", off=False))
    around_call(torch, "set_deterministic_debug_mode", around("debug_mode", "default"))
    around_call(cudnn["deterministic"], "setter", around("", off=False))
