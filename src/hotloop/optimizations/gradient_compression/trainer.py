"""Summing a bucket of gradients over processes in a shorter dtype."""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch import distributed as dist

DTYPES = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_callbacks: WeakSet[Any] = WeakSet()
"""Those that a thread of the process group still holds."""


def wait_for_callbacks(timeout_s: float = 2.0) -> None:
    """Wait until no thread of the process group holds a function of ours.

    It lets go of one after the training has gone on, and needs Python's lock for it: where Python has
    ended by then, the whole process is aborted (seen on loaded machines).
    """
    deadline = time.monotonic() + timeout_s
    while len(_callbacks) and time.monotonic() < deadline:
        time.sleep(0.001)


def sum_over_ranks(
    gradients: Tensor, compression: str
) -> tuple[torch.futures.Future[Tensor], torch.dtype]:
    """The sum of a flat fp32 bucket over all processes, in place, once the future is done; and as what
    it travels."""
    dtype = DTYPES[compression]
    sent = gradients if gradients.dtype == dtype else gradients.to(dtype)
    future = dist.all_reduce(sent, async_op=True).get_future()

    def arrived(done: torch.futures.Future[Any]) -> Tensor:
        total: Tensor = done.value()[0]
        # In place, so that no third copy of the bucket is ever held.
        return total if sent is gradients else gradients.copy_(total)

    _callbacks.add(arrived)
    summed: torch.futures.Future[Tensor] = future.then(arrived)
    return summed, sent.dtype
