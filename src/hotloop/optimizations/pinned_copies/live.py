"""Pinning the batches of a running script. Run on an H100, torch 2.11."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch.utils.data import DataLoader

from hotloop.optimizations.live_report import Report
from hotloop.probe import entry

WATCHED = 4
"""Copies that the host still waits for, to see whether the script writes into what it copied."""
REMEMBERED = 64


def apply(value: Any, report: Report) -> None:
    """Loaders that may train pin their batches; what lies in pinned memory is copied without waiting."""
    copies = Copies(report)

    def iterate(original: Any, loader: Any) -> Any:
        # Asked only once CUDA is in use: the question itself would start it in some set-ups.
        in_use: Any = torch.cuda.is_initialized
        if torch.is_grad_enabled() and in_use() and not loader.pin_memory:
            loader.pin_memory = True
            report.applied(f"batches of {type(loader.dataset).__name__} are pinned")
        return original(loader)

    def copy(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if goes_to_cuda(args, kwargs) and tensor.is_pinned() and copies.may_run_on(tensor):
            kwargs = {**kwargs, "non_blocking": True}
        return original(tensor, *args, **kwargs)

    def copy_to_cuda(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < 2 and tensor.is_pinned() and copies.may_run_on(tensor):
            kwargs = {**kwargs, "non_blocking": True}
        return original(tensor, *args, **kwargs)

    entry.around_call(DataLoader, "__iter__", iterate)
    entry.around_method(torch.Tensor, "to", copy, applies=_is_on_host)
    entry.around_method(torch.Tensor, "cuda", copy_to_cuda, applies=_is_on_host)


class Copies:
    """Turns waiting off, unless the script writes into memory that it has copied from."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._num = 0
        self._off = False
        self._copied: deque[tuple[Any, int, bool]] = deque(maxlen=REMEMBERED)
        """What was copied, its version then, and whether the copy was waited for."""

    def may_run_on(self, tensor: Any) -> bool:
        """Whether the host need not wait for the copy of this one, which is about to be made."""
        if self._off:
            return False
        written = [
            waited
            for earlier, version, waited in self._copied
            if (found := earlier()) is not None and found._version != version
        ]
        if written:
            self._off = True
            say = self._report.refused if all(written) else self._report.wrong
            say("the script writes into a batch that it has copied")
            return False
        while self._copied and self._copied[0][0]() is None:
            self._copied.popleft()
        self._num += 1
        waited = self._num <= WATCHED
        self._copied.append((weakref.ref(tensor), tensor._version, waited))
        if waited:
            return False
        self._report.applied("copies to the GPU are not waited for")
        return True


def _is_on_host(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu")


def goes_to_cuda(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether these arguments of `Tensor.to` copy to a GPU and leave dtype and waiting open.

    Another dtype is made on the host first, in memory that is not pinned. A library that passes on its own
    `non_blocking=False` has not chosen it.
    """
    if len(args) > 1 or kwargs.get("dtype") is not None or kwargs.get("non_blocking"):
        return False
    target = args[0] if args else kwargs.get("device")
    if isinstance(target, torch.Tensor):
        return False  # its dtype as well
    if isinstance(target, torch.device):
        return target.type == "cuda"
    if isinstance(target, bool):
        return False
    return isinstance(target, int) or (isinstance(target, str) and target.startswith("cuda"))
