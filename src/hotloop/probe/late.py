"""Values read from the device a step late, so that reading them never stalls it."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class LateValues:
    """A queue of named scalars per step.

    On an accelerator each step's scalars are copied to pinned memory without blocking and handed out
    once their event has passed. On a CPU a read is free and they are ready at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waiting: deque[tuple[tuple[str, ...], Tensor, torch.cuda.Event | None]] = deque()

    def push(self, values: dict[str, Tensor]) -> None:
        """Scalars of one step, still on the device."""
        stacked = torch.stack([v.detach().float().reshape(()) for v in values.values()])
        event = None
        if self._device.type == "cuda":
            host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
            host.copy_(stacked, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            stacked = host
        self._waiting.append((tuple(values), stacked, event))

    def pop(self, *, wait: bool = False) -> dict[str, float] | None:
        """The oldest step's scalars, or `None` while the device still computes them."""
        if not self._waiting:
            return None
        names, host, event = self._waiting[0]
        if event is not None and not event.query():  # type: ignore[no-untyped-call]
            if not wait:
                return None
            event.synchronize()
        self._waiting.popleft()
        return dict(zip(names, host.tolist(), strict=True))
