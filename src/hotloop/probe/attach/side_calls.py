"""Hooks around what a training does beside its passes: saving, logging, waiting, talking to other processes, copying to
a CUDA device and waiting for it.

Waits for data are those for data that another thread or process makes, outside of any DataLoader. A call that hands over
tensors, arrays or bytes was one; what hands over anything else (a result of saving, a number) stays what it was.

Hooks around copies and waits are put in place when CUDA is initialized, so a run on a CPU has none of them: there the
same methods are called hundreds of times per step (an optimizer's `item` per parameter) and wait for nothing. Run on
an H100, torch 2.11.
"""

from __future__ import annotations

import builtins
import logging
import os
import queue
from collections.abc import Callable
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any

import torch

from hotloop.probe import entry
from hotloop.probe.attach.boundary import Boundary
from hotloop.probe.attach.sites import caller, inside
from hotloop.probe.attach.watch import RESTS, Watch
from hotloop.probe.imports import Action, after_import

_COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "broadcast", "reduce", "gather", "scatter", "alltoall",
    "alltoall_base", "barrier", "monitored_barrier", "send", "recv",
)  # fmt: skip
_FINISHING = ("fsync", "replace", "rename")
"""What follows a save in the same function, to make it last: it can take longer than the save."""
_WAITING = (
    "item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "nonzero",
)  # fmt: skip
_WHOLE = frozenset({"data_wait", "eval", "logging", "checkpoint"})
"""Phases that take in the copies and waits inside of them: without those they would not be cheaper."""
_KINDS = {"checkpoint": "saves", "logging": "logs", "host_to_device": "copies", "sync": "syncs"}
"""By phase, what its calls are counted as."""

SMALLEST_BYTES = 1024
"""A shorter message is rather a command or an answer than a batch."""
DEPTH = 3
LOOKED_AT = 16
"""Items of a list, a dict or an object."""


def watch_side_calls(watch: Watch, boundary: Boundary) -> None:
    """Hook this process, and modules that it imports later."""
    entry.around_call(torch, "save", _booked(watch, "checkpoint", "torch.save"))
    for name in _FINISHING:
        entry.around_call(os, name, _where_saved(watch, _booked(watch, "checkpoint", f"os.{name}")))
    entry.around_call(builtins, "print", _booked(watch, "logging", "print"))
    entry.around_call(logging.Logger, "callHandlers", _booked(watch, "logging", "logging"))
    wait = _waiting(watch)
    entry.around_call(queue.Queue, "get", wait)
    theirs, ours = queue.SimpleQueue, _open_to_hooks(queue.SimpleQueue)
    queue.SimpleQueue = ours  # type: ignore[assignment,misc]
    entry.put_back(queue, "SimpleQueue", ours, theirs)
    entry.around_call(queue.SimpleQueue, "get", wait)
    after_import(
        {**_logging_and_saving(watch), **_handing_over(wait), **_updating(watch, boundary)},
        lambda name, error: watch.note_now(f"not seen: {name}: {error}"),
    )


def _logging_and_saving(watch: Watch) -> dict[str, Action]:
    def booked(phase: str, what: str, path: str, *patterns: str) -> Action:
        """Names that a version of the library lacks are passed over."""

        def hook(module: ModuleType) -> None:
            owner: Any = getattr(module, path) if path else module
            for name in dir(owner):
                if any(fnmatchcase(name, pattern) for pattern in patterns):
                    entry.around_call(owner, name, _booked(watch, phase, f"{what}.{name}"))

        return hook

    writer = booked("logging", "SummaryWriter", "SummaryWriter", "add_*", "flush")
    return {
        "safetensors.torch": booked(
            "checkpoint", "safetensors.torch", "", "save_file", "save_model"
        ),
        "torch.distributed.checkpoint.state_dict_saver": booked(
            "checkpoint", "torch.distributed.checkpoint", "", "save", "async_save"
        ),
        "torch.utils.tensorboard.writer": writer,
        "tensorboardX.writer": writer,
        "wandb.sdk.wandb_run": booked("logging", "wandb", "Run", "log"),
        "mlflow.tracking.fluent": booked(
            "logging", "mlflow", "", "log_metric", "log_metrics", "log_params", "log_artifact"
        ),
        "tqdm.std": booked("logging", "tqdm", "tqdm", "update", "refresh", "set_postfix", "close"),
        "torch.distributed.distributed_c10d": lambda module: _watch_collectives(watch, module),
    }


def _each(around: entry.Around, *paths: str) -> Action:
    """Hooks these methods of a module's classes, as `Queue.get`; a missing one is an `AttributeError` at its import."""

    def hook(module: ModuleType) -> None:
        for path in paths:
            owner, name = path.split(".")
            entry.around_call(getattr(module, owner), name, around)

    return hook


def _handing_over(wait: entry.Around) -> dict[str, Action]:
    return {
        "multiprocessing.queues": _each(wait, "Queue.get"),
        "multiprocessing.connection": _each(
            wait, "_ConnectionBase.recv", "_ConnectionBase.recv_bytes"
        ),
        "multiprocessing.pool": _each(
            wait, "ApplyResult.get", "IMapIterator.next", "IMapIterator.__next__"
        ),
        "concurrent.futures._base": _each(wait, "Future.result"),
    }


def _updating(watch: Watch, boundary: Boundary) -> dict[str, Action]:
    """Optimizers of libraries that are none of torch's: their updates are updates all the same."""

    def update(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        watch.guarded(boundary.before_update, optimizer)
        result = original(optimizer, *args, **kwargs)
        watch.guarded(boundary.after_update, optimizer)
        return result

    return {
        "fastai.optimizer": _each(update, "Optimizer.step"),
        "keras.src.optimizers.base_optimizer": _each(update, "BaseOptimizer.apply"),
    }


def _where_saved(watch: Watch, booked: Callable[..., Any]) -> Callable[..., Any]:
    """`booked`, in functions that saved something before."""

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.savers and watch.here():
            place = watch.sites.place(caller())
            if place is not None and place[0] in watch.savers:
                return booked(original, *args, **kwargs)
        return original(*args, **kwargs)

    return around


def _booked(
    watch: Watch,
    phase: str,
    what: str,
    *,
    is_part: Callable[[], bool] | None = None,
    copied: Callable[..., torch.Tensor | None] | None = None,
) -> entry.Around:
    """Opens `phase` and books the call with its place.

    is_part: whether it is part of what is booked already; else within the same phase only the outermost call is booked.
    copied: from the call's arguments to the tensor that it copies to the device; `None` where it copies none.
    """
    kind = _KINDS.get(phase)
    opened = watch.clock.opened

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        if opened[-1] in (phase, RESTS) or (is_part is not None and is_part()):
            return original(*args, **kwargs)
        tensor = None
        if copied is not None and (tensor := copied(*args, **kwargs)) is None:
            return original(*args, **kwargs)
        return watch.timed(phase, original, args, kwargs, book if kind else None, tensor)

    def book(seconds: float, tensor: torch.Tensor | None) -> None:
        assert kind is not None
        if kind == "saves":
            watch.tag("checkpoint")
        frame = caller()
        place = watch.sites.place(frame)
        if kind == "saves" and place is not None:
            watch.savers.add(place[0])
        num_bytes, pageable = 0, None
        if tensor is not None:
            num_bytes, pageable = tensor.numel() * tensor.element_size(), not tensor.is_pinned()
        watch.calls.add(
            kind, what, place, seconds, num_bytes, pageable=pageable, inside=inside(frame)
        )

    return around


def _watch_collectives(watch: Watch, module: ModuleType) -> None:
    """Below the functions of `torch.distributed`: compilers know those by their identity."""
    around = _booked(watch, "grad_sync", "collective")
    group = getattr(module, "ProcessGroup", None)
    for name in _COLLECTIVES:
        if hasattr(group, name):
            entry.around_method(group, name, around)  # type: ignore[arg-type]
    work = getattr(module, "Work", None)
    if hasattr(work, "wait"):
        entry.around_method(work, "wait", around)  # type: ignore[arg-type]


def _waiting(watch: Watch) -> entry.Around:
    def wait(original: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.clock.innermost != "unattributed" or watch.evaluates:
            return original(*args, **kwargs)
        depth = watch.enter("data_wait")
        if depth < 0:
            return original(*args, **kwargs)
        start = watch.clock.last
        watch.waits, watch.span = True, watch.span + 1
        try:
            found = original(*args, **kwargs)
        finally:
            watch.waits = False
            watch.leave(depth)
        if not watch.tried(holds_data, found):
            watch.outside.append(watch.span)
            watch.clock.move(watch.clock.last - start, "data_wait", "unattributed")
        return found

    return wait


def _open_to_hooks(kind: type) -> type:
    """A subclass by the same name: C's own types take no other methods. Queues made before stay unseen."""
    return type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__})


def holds_data(value: Any, depth: int = DEPTH) -> bool:
    """Whether there is something in it that a model could be given."""
    if isinstance(value, torch.Tensor) or type(value).__name__ == "ndarray":
        return True
    if isinstance(value, (bytes, bytearray, memoryview)):
        return len(value) >= SMALLEST_BYTES
    if not depth or value is None or isinstance(value, (str, int, float, BaseException)):
        return False
    if isinstance(value, (list, tuple)):
        inner = list(value[:LOOKED_AT])
    else:
        held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        inner = list(held.values())[:LOOKED_AT]
    return any(holds_data(each, depth - 1) for each in inner)


def when_cuda_starts(action: Callable[[], None]) -> None:
    """Once CUDA is initialized, or now if it is; never where torch was built without it."""
    if torch.version.cuda is None and torch.version.hip is None:
        return
    # Asking whether there is a device would create a context, and spoil a fork that comes later.
    torch.cuda._lazy_call(action)  # type: ignore[no-untyped-call]


def watch_device_calls(watch: Watch, accelerator: str = "cuda") -> None:
    """Hook the methods of tensors. accelerator: the type of devices that count."""
    opened = watch.clock.opened

    def is_part() -> bool:
        """Of what is open, or of an evaluation between two of its passes."""
        if not _WHOLE.isdisjoint(opened):
            return True
        return watch.evaluates and (watch.eval_batch or not torch.is_grad_enabled())

    def on_host(tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    def on_device(tensor: torch.Tensor) -> bool:
        return tensor.device.type == accelerator

    def moved(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        target = args[0] if args else kwargs.get("device", kwargs.get("other"))
        return tensor if _names(accelerator, target) else None

    def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        source = args[0] if args else kwargs.get("src")
        return source if isinstance(source, torch.Tensor) and on_host(source) else None

    for name, applies, copied in (
        ("to", on_host, moved),
        ("cuda", on_host, lambda tensor, *args, **kwargs: tensor),
        ("copy_", on_device, read),
    ):
        what = f"Tensor.{name}"
        copy = _booked(watch, "host_to_device", what, is_part=is_part, copied=copied)
        entry.around_method(torch.Tensor, name, copy, applies=applies)
    for name in _WAITING:
        wait = _booked(watch, "sync", name.strip("_"), is_part=is_part)
        entry.around_method(torch.Tensor, name, wait, applies=on_device)
    what = "torch.cuda.synchronize"
    entry.around_call(torch.cuda, "synchronize", _booked(watch, "sync", what, is_part=is_part))


def _names(accelerator: str, target: Any) -> bool:
    """Whether an argument of `to` names such a device."""
    if isinstance(target, str):
        return target.startswith(accelerator)
    if isinstance(target, torch.Tensor):
        target = target.device
    if isinstance(target, torch.device):
        return target.type == accelerator
    return isinstance(target, int) and not isinstance(target, bool)
