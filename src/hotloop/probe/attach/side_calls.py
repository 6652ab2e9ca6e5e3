"""Hooks around what a training does beside computing: saving, logging, talking to other processes."""

from __future__ import annotations

import builtins
import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from hotloop.probe import entry
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


def watch_side_calls(watch: Watch) -> None:
    """Hook this process, and modules that it imports later."""
    _around(watch, torch, "save", "checkpoint", "torch.save")
    for name in _FINISHING:
        entry.around_call(os, name, _where_saved(watch, _booked(watch, "checkpoint", f"os.{name}")))
    entry.around_call(builtins, "print", _booked(watch, "logging", "print"))
    _around(watch, logging.Logger, "callHandlers", "logging", "logging")
    after_import(_later(watch), lambda name, error: watch.note_now(f"not seen: {name}: {error}"))


def _later(watch: Watch) -> dict[str, Action]:
    """What is hooked in which module, once it is imported."""

    def around(phase: str, path: str, *names: str, what: str | None = None) -> Action:
        def hook(module: ModuleType) -> None:
            owner: Any = module
            for part in filter(None, path.split(".")):
                owner = getattr(owner, part)
            for name in names:
                if hasattr(owner, name):
                    label = f"{what or path or module.__name__}.{name}"
                    _around(watch, owner, name, phase, label)

        return hook

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
