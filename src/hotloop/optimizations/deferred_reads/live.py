"""Reading scalars of a running script late. Run on an H100, torch 2.11."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from hotloop.optimizations.hooks import TORCH, after_first_step, optimizer_device_type
from hotloop.optimizations.live_report import Report
from hotloop.probe.attach.sites import caller, file_and_line
from hotloop.probe.entry import around_method

READS = ("item", "__float__")
MOST_WAITING = 64
"""Copies of one place that may be under way; the next read waits for the oldest."""


@dataclass
class _Place:
    """One line that reads."""

    last: Any = None
    waiting: deque[tuple[torch.Tensor, Any]] = field(default_factory=deque)
    """Copies on the host, and the event after which each is there."""


class StaleReads:
    """Values of scalars as they were when their copy had arrived, by the place that reads."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._places: dict[Any, _Place] = {}
        self.trains = False
        """A step was made: what is read from here on is read in the loop."""

    def around(self, original: Any, tensor: torch.Tensor) -> Any:
        """For `entry.around_method`. What torch itself reads decides what it does next: that is not touched."""
        frame = caller()
        if not self.trains or frame is None or frame.f_code.co_filename.startswith(TORCH):
            return original(tensor)
        # Whole numbers may be sizes: a wrong one is an error, not a stale line of a log.
        if not tensor.is_floating_point() or tensor.numel() != 1:
            return original(tensor)
        if tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return original(tensor)
        key = (frame.f_code, frame.f_lasti)
        if key not in self._places:
            self._places[key] = _Place(last=original(tensor))
            return self._places[key].last
        self._report.applied(file_and_line(frame))
        return self._stale(self._places[key], tensor)

    def _stale(self, place: _Place, tensor: torch.Tensor) -> Any:
        waiting = place.waiting
        while waiting and (
            len(waiting) >= MOST_WAITING or waiting[0][1] is None or waiting[0][1].query()
        ):
            copy, event = waiting.popleft()
            if event is not None:
                event.synchronize()
            place.last = copy.item()
        waiting.append(_copied(tensor))
        return place.last


def _copied(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """On the host, some time; and the event that says when."""
    if tensor.device.type != "cuda":
        return tensor.detach().clone(), None
    # Pinned: a copy to other memory would wait for the device.
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor.detach(), non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))
    return copy, event


def apply(value: Any, report: Report) -> None:
    """Put in place now; nothing is stale before the end of the first step."""
    reads = StaleReads(report)

    def step_ended(optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer_device_type(optimizer) != "cuda":
            report.refused("on a CPU a value is there when it is read: nothing waits")
        reads.trains = True

    for name in READS:
        around_method(torch.Tensor, name, reads.around, applies=lambda tensor: tensor.is_cuda)
    after_first_step(step_ended, report)
