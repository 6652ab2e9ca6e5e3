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

    def wait_for_all_but(self, newest: int) -> None:
        """Wait until the device has computed the scalars of every step but the `newest` ones."""
        for _, _, event in list(self._waiting)[: len(self._waiting) - newest]:
            if event is not None:
                event.synchronize()

    def pop(self) -> dict[str, float] | None:
        """The oldest step's scalars, waited for if need be; `None` when none were pushed."""
        if not self._waiting:
            return None
        names, host, event = self._waiting.popleft()
        if event is not None:
            event.synchronize()
        return dict(zip(names, host.tolist(), strict=True))
