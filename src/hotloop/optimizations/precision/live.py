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
    autocasting = _Autocasting(value, report)
    watch_compiler()

    def frozen(module: torch.nn.Module) -> None:
        autocasting.refuse(module, "none of its weights is trained")

    around_training_calls(autocasting.around, frozen=frozen)


class _Autocasting:
    """Puts the outermost calls of models under autocast, those of each model or none of them."""

    def __init__(self, name: str, report: Report) -> None:
        self._name, self._dtype = name, DTYPES[name]
        self._report = report
        self._scaling = LossScaling(report) if name == "fp16" else None
        self._multiplies: dict[int, bool] = {}
        """By model, whether it is put under autocast, as its first call showed."""
        self._why_not: dict[int, str] = {}
        self._told: set[Any] = set()
        self._is_on = True

    def toggle(self, on: bool) -> None:
        """For trials within a process."""
        self._is_on = on
        if self._scaling is not None:
            self._scaling.is_on = on

    def around(self, call: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Make the call of a model, under autocast where that is of use."""
        device_type, name = module_device_type(module), type(module).__name__
        # torch has autocast to fp32 on a GPU: no autocast to a script that calls it so for `--dtype=float32`.
        on = torch.is_autocast_enabled(device_type)
        if on and torch.get_autocast_dtype(device_type) != torch.float32:
            self._report.refused(f"{name}: the script autocasts it")
            return call(*args, **kwargs)
        if not self._takes(module):
            return call(*args, **kwargs)
        unwatched = self._scaling.unwatched() if self._scaling is not None else nullcontext()
        with unwatched, autocast(device_type, self._name):
            if id(module) in self._multiplies:
                made = call(*args, **kwargs)
            elif compiler_is_used():
                name += ", compiled: its products were not looked at"
                made = call(*args, **kwargs)
            else:
                made, why_not = _watched(call, args, kwargs, self._dtype)
                if why_not is not None:
                    self._leave(module, why_not)
        if self._multiplies.setdefault(id(module), True):
            self._tell(name, device_type, module, made)
        return _as_fp32(made, self._dtype)

    def _takes(self, module: torch.nn.Module) -> bool:
        """Whether it may be put under autocast now."""
        if self._scaling is not None:
            why_not = None if id(module) in self._multiplies else reason_not_scaled(module)
            if why_not is not None:
                self._leave(module, why_not)
            if self._scaling.has_failed:
                return False
        if self._multiplies.get(id(module)) is False:
            self.refuse(module, self._why_not[id(module)])
            return False
        return self._is_on

    def _leave(self, module: torch.nn.Module, why_not: str) -> None:
        self._multiplies[id(module)], self._why_not[id(module)] = False, why_not
        self.refuse(module, why_not)

    def refuse(self, module: torch.nn.Module, why_not: str) -> None:
        """Report it, once for each place: an edit there would reach this model, too."""
        key = (id(module), why_not, self._report.called_from())
        if key not in self._told:
            self._told.add(key)
            self._report.refused(f"{type(module).__name__}: {why_not}")

    def _tell(self, name: str, device_type: str, module: torch.nn.Module, made: Any) -> None:
        """Report it, once for each place and kind of what it makes."""
        if self._scaling is not None:
            self._scaling.start(device_type)
        key = (id(module), type(made), self._report.called_from())
        if key in self._told:
            return
        self._told.add(key)
        facts = {"device_type": device_type, "made": _kind(made)}
        # What is compiled would be compiled once more for the other half.
        can_toggle = None if compiler_is_used() else self.toggle
        self._report.applied(name, toggle=can_toggle, **facts)
        if self._scaling is not None:
            self._scaling.describe(facts, can_toggle)


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
