"""Making a running script's optimizers fused."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hotloop.optimizations.live_report import Report, Toggle, has_accelerator
from hotloop.probe.entry import before_step

LOOK_EVERY = 32
"""Updates; at the first ones, too."""


def apply(value: Any, report: Report) -> None:
    """Have torch's optimizers that can be fused be made so, unless the script chose otherwise."""
    being_made: set[int] = set()
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        kind.__init__ = _fusing(kind, report, being_made, before_step)  # type: ignore[method-assign]


def _fusing(kind: Any, report: Report, being_made: set[int], before_step: Any) -> Any:
    original = kind.__init__

    @functools.wraps(original)
    def made(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        # AdamW is an Adam, and calls its __init__; the step clock makes one to measure its own cost
        by = str(sys._getframe(1).f_globals.get("__name__", ""))
        if id(self) in being_made or by.startswith("hotloop.probe."):
            original(self, params, *args, **kwargs)
            return
        being_made.add(id(self))
        try:
            make(self, params, *args, **kwargs)
        finally:
            being_made.discard(id(self))

    def make(self: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        chosen = {
            each: kwargs[each] for each in ("foreach", "fused") if kwargs.get(each) is not None
        }
        if chosen or kwargs.get("differentiable"):
            report.refused(f"{name}: the script chose {chosen or 'differentiable'}")
            original(self, params, *args, **kwargs)
            return
        params = _listed(params)  # it may be taken twice
        why_not = None
        if inspect.unwrap(type(self).step) is not inspect.unwrap(kind.step):
            why_not = "it has a `step` of its own"
        elif not all(each.is_floating_point() for each in _weights(params)):
            why_not = "not all weights are of floating point"
        if why_not is not None:
            report.refused(f"{name}: {why_not}")
            original(self, params, *args, **kwargs)
            return
        try:
            original(self, params, *args, **{**kwargs, "fused": True})
        except Exception as error:  # noqa: BLE001 - torch says which parameters cannot be
            report.refused(f"{name}: {error}")
            original(self, params, *args, **kwargs)
            return
        before_step(_looking_at_gradients(self, report))
        report.applied(name, toggle=_toggle_of(self))

    return made


def _looking_at_gradients(optimizer: Any, report: Report) -> Callable[[Any], None]:
    """To be called before updates: ends them where torch's fused ones would fail or compute something else."""
    made = weakref.ref(optimizer)
    num_updates = 0

    def look(stepping: Any) -> None:
        nonlocal num_updates
        own = made()
        if own is None or own is not stepping:
            return
        num_updates += 1
        if num_updates > 4 and num_updates % LOOK_EVERY:  # each costs a little for every weight
            return
        for group in own.param_groups:
            for weight in group["params"]:
                why_not = _why_not_fused(weight, weight.grad, group) if group["fused"] else None
                if why_not is not None:
                    group["fused"] = None
                    shape = tuple(weight.shape)
                    report.wrong(
                        f"{type(own).__name__}: the gradient of a weight of shape {shape} {why_not}"
                    )

    return look


def _why_not_fused(weight: Any, gradient: Any, group: Any) -> str | None:
    if gradient is None:
        # As of a layer that is trained later: torch makes the momentum of all weights in one update, or fails.
        waits = "is not there yet, and torch's fused update with momentum would fail once it comes"
        return waits if group.get("momentum") else None
    if gradient.is_sparse:
        return "is sparse, which torch's fused update does not take"
    if _lies_otherwise(weight, gradient):  # it takes elements in the order in which they lie
        return "lies otherwise in memory, and torch's fused update would pair the wrong elements"
    return None


def _lies_otherwise(weight: Any, gradient: Any) -> bool:
    if weight.stride() == gradient.stride():
        return False
    each = zip(weight.shape, weight.stride(), gradient.stride(), strict=True)
    return any(size > 1 and of_weight != of_gradient for size, of_weight, of_gradient in each)


def _toggle_of(optimizer: Any) -> Toggle | None:
    """Its state is the same either way on a CPU; on a GPU the counts of steps would lie on the wrong side."""
    if has_accelerator():
        return None
    made = weakref.ref(optimizer)  # it must not live longer for this

    def toggle(on: bool) -> None:
        if (optimizer := made()) is None:
            return
        for group in optimizer.param_groups:
            group["fused"] = True if on else None
        optimizer._step_supports_amp_scaling = on  # as its __init__ does

    return toggle


def _listed(params: Any) -> Any:
    """The same, where generators could be read only once."""
    if isinstance(params, torch.Tensor):
        return params
    return [
        {**each, "params": _listed(each["params"])} if isinstance(each, dict) else each
        for each in params
    ]


def _weights(params: Any) -> Iterator[Any]:
    """Of what `_listed` gave: tensors, `(name, tensor)`, or groups of them."""
    for each in [params] if isinstance(params, torch.Tensor) else params:
        if isinstance(each, dict):
            yield from _weights(each["params"])
        else:
            yield each[1] if isinstance(each, tuple) else each
