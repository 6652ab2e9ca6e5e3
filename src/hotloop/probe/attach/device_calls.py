"""Hooks around copies to a CUDA device and around calls that wait for one. Not yet run on a GPU.

They are put in place when CUDA is initialized, so a run on a CPU has none of them: there the same
methods are called hundreds of times per step (an optimizer's `item` per parameter) and wait for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hotloop.probe import entry
from hotloop.probe.attach.sites import caller, inside
from hotloop.probe.attach.watch import Watch

WAITING = (
    "item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "nonzero",
)  # fmt: skip


_WHOLE = frozenset({"data_wait", "eval", "logging", "checkpoint"})
"""Phases that take in the copies and waits inside of them: without those they would not be cheaper."""


def when_cuda_starts(action: Callable[[], None]) -> None:
    """Once CUDA is initialized, or now if it is; never where torch was built without it."""
    if torch.version.cuda is None and torch.version.hip is None:
        return
    # Asking whether there is a device would create a context, and spoil a fork that comes later.
    torch.cuda._lazy_call(action)  # type: ignore[no-untyped-call]


def watch_device_calls(watch: Watch, accelerator: str = "cuda") -> None:
    """Hook the methods of tensors. accelerator: the type of devices that count."""
    copying = _booked(watch, "copies", "host_to_device")
    waiting = _booked(watch, "syncs", "sync")

    def on_host(tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    def on_device(tensor: torch.Tensor) -> bool:
        return tensor.device.type == accelerator

    def to(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not _names(accelerator, args[0] if args else kwargs.get("device", kwargs.get("other"))):
            return original(tensor, *args, **kwargs)
        return copying("Tensor.to", tensor, original, tensor, *args, **kwargs)

    def cuda(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return copying("Tensor.cuda", tensor, original, tensor, *args, **kwargs)

    def copy_(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        source = args[0] if args else kwargs.get("src")
        if not isinstance(source, torch.Tensor) or not on_host(source):
            return original(tensor, *args, **kwargs)
        return copying("Tensor.copy_", source, original, tensor, *args, **kwargs)

    entry.around_method(torch.Tensor, "to", to, applies=on_host)
    entry.around_method(torch.Tensor, "cuda", cuda, applies=on_host)
    entry.around_method(torch.Tensor, "copy_", copy_, applies=on_device)
    for name in WAITING:
        entry.around_method(torch.Tensor, name, _waiting(name, waiting), applies=on_device)
    entry.around_call(torch.cuda, "synchronize", _synchronizing(waiting))


def _waiting(name: str, waiting: Callable[..., Any]) -> Callable[..., Any]:
    what = name.strip("_")

    def wait(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return waiting(what, None, original, tensor, *args, **kwargs)

    return wait


def _synchronizing(waiting: Callable[..., Any]) -> Callable[..., Any]:
    def synchronize(original: Any, *args: Any, **kwargs: Any) -> Any:
        return waiting("torch.cuda.synchronize", None, original, *args, **kwargs)

    return synchronize


def _names(accelerator: str, target: Any) -> bool:
    """Whether an argument of `to` names such a device."""
    if isinstance(target, str):
        return target.startswith(accelerator)
    if isinstance(target, torch.device):
        return target.type == accelerator
    if isinstance(target, torch.Tensor):
        return target.device.type == accelerator
    return isinstance(target, int) and not isinstance(target, bool)


def _booked(watch: Watch, kind: str, phase: str) -> Callable[..., Any]:
    """Calls `original` in `phase`, and books it, where it is no part of something that is booked itself."""
    opened = watch.clock.opened
    clock = watch.clock

    def belongs_to_another() -> bool:
        """Part of what is open, or of an evaluation between two of its passes."""
        if not _WHOLE.isdisjoint(opened) or opened[-1] == phase:
            return True
        return watch.evaluates and not torch.is_grad_enabled()

    def call(
        what: str, copied: torch.Tensor | None, original: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if belongs_to_another():
            return original(*args, **kwargs)
        depth = watch.enter(phase)
        if depth < 0:
            return original(*args, **kwargs)
        start = clock.last
        try:
            return original(*args, **kwargs)
        finally:
            watch.leave(depth)
            watch.tried(book, what, copied, clock.last - start)

    def book(what: str, copied: torch.Tensor | None, seconds: float) -> None:
        frame = caller()
        num_bytes, pageable = 0, None
        if copied is not None:
            num_bytes = copied.numel() * copied.element_size()
            pageable = not copied.is_pinned()
        watch.calls.add(
            kind,
            what,
            watch.sites.place(frame),
            seconds,
            num_bytes,
            pageable=pageable,
            inside=inside(frame),
        )

    return call
