"""Mixed precision in a running script: the outermost call of its model under autocast."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from hotloop.optimizations.hooks import (
    WatchedOperations,
    around_training_calls,
    compiler_is_used,
    each_tensor,
    module_device_type,
    watch_compiler,
)
from hotloop.optimizations.live_report import Report
from hotloop.optimizations.precision.autocast import DTYPES, autocast, set_tf32
from hotloop.optimizations.precision.loss_scaling import LossScaling, reason_not_scaled


def apply(value: Any, report: Report) -> None:
    """`tf32`: the switches. `bf16` and `fp16`: the script's model runs under autocast, and gives fp32.

    For fp16 its loss is scaled, too.
    """
    if value == "tf32":
        set_tf32("tf32")
        report.applied("matrix products and convolutions")
        return
    dtype = DTYPES[value]
    scaling = LossScaling(report) if value == "fp16" else None
    watch_compiler()
    multiplies: dict[int, bool] = {}
    """By model, whether it is put under autocast, as its first call showed."""
    told: set[Any] = set()
    is_on = True

    def toggle(on: bool) -> None:
        nonlocal is_on
        is_on = on
        if scaling is not None:
            scaling.is_on = on

    def around(call: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        device_type = module_device_type(module)
        name = type(module).__name__
        if torch.is_autocast_enabled(device_type):
            report.refused(f"{name}: the script autocasts it")
            return call(*args, **kwargs)
        if scaling is not None and id(module) not in multiplies:
            why_not = reason_not_scaled(module)
            if why_not is not None:
                multiplies[id(module)] = False
                report.refused(f"{name}: {why_not}")
        has_failed = scaling is not None and scaling.has_failed
        if multiplies.get(id(module)) is False or has_failed or not is_on:
            return call(*args, **kwargs)
        unwatched = scaling.unwatched() if scaling is not None else nullcontext()
        with unwatched, autocast(device_type, value):
            if id(module) in multiplies:
                made = call(*args, **kwargs)
            elif compiler_is_used():
                multiplies[id(module)] = True
                name += ", compiled: its products were not looked at"
                made = call(*args, **kwargs)
            else:
                made, why_not = _watched(call, args, kwargs, dtype)
                multiplies[id(module)] = why_not is None
                if why_not is not None:
                    report.refused(f"{name}: {why_not}")
        if multiplies[id(module)]:
            if scaling is not None:
                scaling.start(device_type)
            key = (id(module), type(made), report.called_from())
            if key not in told:
                told.add(key)
                facts = {"device_type": device_type, "made": _kind(made)}
                # What is compiled would be compiled once more for the other half.
                can_toggle = None if compiler_is_used() else toggle
                report.applied(name, toggle=can_toggle, **facts)
                if scaling is not None:
                    scaling.describe(facts, can_toggle)
        return _as_fp32(made, dtype)

    def frozen(module: torch.nn.Module) -> None:
        report.refused(f"{type(module).__name__}: none of its weights is trained")

    around_training_calls(around, frozen=frozen)


def _watched(call: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> tuple[Any, str | None]:
    """Make the call under autocast, and say why the others should not be."""
    seen: set[torch.dtype] = set()
    made_by: dict[int, str] = {}
    """By address of a tensor's memory, the operation that last wrote what is no mere copy."""

    ends: list[str] = []

    def look(function: Any, given: Any, result: Any) -> None:
        kind = function.overloadpacket.__name__
        if not isinstance(result, torch.Tensor):
            return
        if kind in _PRODUCTS:
            seen.add(result.dtype)
        first = given[0] if given and isinstance(given[0], torch.Tensor) else None
        from_memory = first is not None and _memory(first)
        if kind in _COPIES:
            made_by[_memory(result)] = made_by.get(from_memory or 0, kind)
        elif kind.endswith("_") or _memory(result) != from_memory:  # else it is a view
            made_by[_memory(result)] = kind.strip("_")

    def check(tensor: torch.Tensor) -> torch.Tensor:
        kind = made_by.get(_memory(tensor), "")
        if tensor.dtype == dtype and kind in _NEEDS_DIGITS:
            ends.append(kind)
        return tensor

    with WatchedOperations(look):
        made = call(*args, **kwargs)
    short = next(name for name, each in DTYPES.items() if each == dtype)
    if dtype not in seen:
        return made, f"no matrix product of it ran in {short}"
    made = each_tensor(made, check)
    if not ends:
        return made, None
    return made, (
        f"it ends in {ends[0]} in {short}, which has too few digits for what is almost 0 or 1: let the model "
        "give what comes before it, and use the loss that takes that (`BCEWithLogitsLoss`, `cross_entropy`)"
    )


def _memory(tensor: torch.Tensor) -> int:
    """The address of its elements: the same for its views."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # it has none
        return 0


_NEEDS_DIGITS = {
    *("sigmoid", "softmax", "log_softmax", "exp", "log", "log_sigmoid_forward"),
    *("softplus", "logsumexp", "log1p", "expm1"),
}
_COPIES = {"clone", "_to_copy", "contiguous", "clamp", "clamp_min", "clamp_max"}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "matmul"}


def _as_fp32(made: Any, dtype: torch.dtype) -> Any:
    """Tensors of bf16 or fp16 in what a model gives as fp32: a loss outside is computed as before."""
    return each_tensor(made, lambda tensor: tensor.float() if tensor.dtype == dtype else tensor)


def _kind(made: Any) -> str:
    """How much the patch has to write to do to it what `_as_fp32` does."""
    if isinstance(made, torch.Tensor):
        return "tensor"
    if type(made) is tuple and all(each is None or torch.is_tensor(each) for each in made):
        return "tuple"
    return "any"
