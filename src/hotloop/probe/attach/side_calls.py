"""Hooks around what a training does beside its passes: saving, logging, waiting, talking to other processes.

Waits are those for data that another thread or process makes, outside of any DataLoader. A call that hands over
tensors, arrays or bytes was one; what hands over anything else (a result of saving, a number) stays what it was.
"""

from __future__ import annotations

import builtins
import logging
import os
import queue
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from hotloop.probe import entry
from hotloop.probe.attach.boundary import Boundary
from hotloop.probe.attach.sites import caller, inside
from hotloop.probe.attach.watch import Watch
from hotloop.probe.imports import Action, after_import

_COLLECTIVES = (
    "allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "broadcast", "reduce", "gather", "scatter", "alltoall",
    "alltoall_base", "barrier", "monitored_barrier", "send", "recv",
)  # fmt: skip
_FINISHING = ("fsync", "replace", "rename")
"""What follows a save in the same function, to make it last: it can take longer than the save."""


SMALLEST_BYTES = 1024
"""A shorter message is rather a command or an answer than a batch."""
DEPTH = 3
LOOKED_AT = 16
"""Items of a list, a dict or an object."""


def watch_side_calls(watch: Watch, boundary: Boundary) -> None:
    """Hook this process, and modules that it imports later."""
    _around(watch, torch, "save", "checkpoint", "torch.save")
    for name in _FINISHING:
        entry.around_call(os, name, _where_saved(watch, _booked(watch, "checkpoint", f"os.{name}")))
    entry.around_call(builtins, "print", _booked(watch, "logging", "print"))
    _around(watch, logging.Logger, "callHandlers", "logging", "logging")
    wait = _waiting(watch)
    entry.around_call(queue.Queue, "get", wait)
    queue.SimpleQueue = _open_to_hooks(queue.SimpleQueue)  # type: ignore[assignment,misc]
    entry.around_call(queue.SimpleQueue, "get", wait)
    after_import(
        {**_logging_and_saving(watch), **_handing_over(wait), **_updating(watch, boundary)},
        lambda name, error: watch.note_now(f"not seen: {name}: {error}"),
    )


def _each(
    path: str, *names: str, around: Callable[[str], entry.Around], optional: bool = False
) -> Action:
    """Hooks these functions of a module, or of what `path` leads to in it. around: from a function's full name.

    optional: a name may be missing; else that is an `AttributeError` when the module is imported.
    """

    def hook(module: ModuleType) -> None:
        owner: Any = getattr(module, path) if path else module
        for name in names:
            if hasattr(owner, name) or not optional:
                entry.around_call(owner, name, around(f"{path or module.__name__}.{name}"))

    return hook


def _logging_and_saving(watch: Watch) -> dict[str, Action]:
    def around(phase: str, path: str, *names: str, what: str | None = None) -> Action:
        def booked(name: str) -> entry.Around:
            label = f"{what}.{name.rpartition('.')[2]}" if what else name
            return _booked(watch, phase, label)

        return _each(path, *names, around=booked, optional=True)

    def writer(module: ModuleType) -> None:
        for name in dir(module.SummaryWriter):
            if name.startswith("add_") or name == "flush":
                _around(watch, module.SummaryWriter, name, "logging", f"SummaryWriter.{name}")

    return {
        "safetensors.torch": around("checkpoint", "", "save_file", "save_model"),
        "torch.distributed.checkpoint.state_dict_saver": around(
            "checkpoint", "", "save", "async_save", what="torch.distributed.checkpoint"
        ),
        "torch.utils.tensorboard.writer": writer,
        "tensorboardX.writer": writer,
        "wandb.sdk.wandb_run": around("logging", "Run", "log", what="wandb"),
        "mlflow.tracking.fluent": around(
            "logging", "", "log_metric", "log_metrics", "log_params", "log_artifact", what="mlflow"
        ),
        "tqdm.std": around("logging", "tqdm", "update", "refresh", "set_postfix", "close"),
        "torch.distributed.distributed_c10d": lambda module: _watch_collectives(watch, module),
    }


def _handing_over(wait: entry.Around) -> dict[str, Action]:
    def around(path: str, *names: str) -> Action:
        return _each(path, *names, around=lambda name: wait)

    def pools(module: ModuleType) -> None:
        around("ApplyResult", "get")(module)
        around("IMapIterator", "next", "__next__")(module)

    return {
        "multiprocessing.queues": around("Queue", "get"),
        "multiprocessing.connection": around("_ConnectionBase", "recv", "recv_bytes"),
        "multiprocessing.pool": pools,
        "concurrent.futures._base": around("Future", "result"),
    }


def _updating(watch: Watch, boundary: Boundary) -> dict[str, Action]:
    """Optimizers of libraries that are none of torch's: their updates are updates all the same."""

    def update(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        watch.guarded(boundary.before_update, optimizer)
        result = original(optimizer, *args, **kwargs)
        watch.guarded(boundary.after_update, optimizer)
        return result

    return {
        "fastai.optimizer": _each("Optimizer", "step", around=lambda name: update),
        "keras.src.optimizers.base_optimizer": _each(
            "BaseOptimizer", "apply", around=lambda name: update
        ),
    }


def _around(watch: Watch, owner: Any, name: str, phase: str, what: str) -> None:
    entry.around_call(owner, name, _booked(watch, phase, what))


def _where_saved(watch: Watch, booked: Callable[..., Any]) -> Callable[..., Any]:
    """`booked`, in functions that saved something before."""

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.savers and watch.here():
            place = watch.sites.place(caller())
            if place is not None and place[0] in watch.savers:
                return booked(original, *args, **kwargs)
        return original(*args, **kwargs)

    return around


def _booked(watch: Watch, phase: str, what: str) -> Callable[..., Any]:
    """Opens `phase` and books the call with its place; within the same phase only the outermost."""
    kind = {"checkpoint": "saves", "logging": "logs"}.get(phase)
    clock = watch.clock

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        if clock.innermost == phase:
            return original(*args, **kwargs)
        depth = watch.enter(phase)
        if depth < 0:
            return original(*args, **kwargs)
        start = clock.last
        try:
            return original(*args, **kwargs)
        finally:
            watch.leave(depth)
            if kind is not None:
                watch.tried(book, clock.last - start)
            if phase == "checkpoint":
                watch.tag("checkpoint")

    def book(seconds: float) -> None:
        assert kind is not None
        frame = caller()
        place = watch.sites.place(frame)
        if kind == "saves" and place is not None:
            watch.savers.add(place[0])
        watch.calls.add(kind, what, place, seconds, inside=inside(frame))

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
        try:
            found = original(*args, **kwargs)
        finally:
            watch.leave(depth)
        if not watch.tried(holds_data, found):
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
