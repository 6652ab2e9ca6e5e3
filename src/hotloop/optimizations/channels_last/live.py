"""Storing the convolution weights of a running script with the channels last."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from hotloop.core.errors import first_line
from hotloop.optimizations.hooks import (
    WatchedOperations,
    around_training_calls,
    at_step_start,
    compiler_is_used,
    each_tensor,
    watch_compiler,
)
from hotloop.optimizations.live_report import Report

KINDS = (nn.Conv2d, nn.ConvTranspose2d)


def why_not_converted(module: nn.Module) -> str | None:
    """Why the convolutions of this model must stay as they are; `None` where they may be converted."""
    name = type(module).__name__
    for each in module.modules():
        if type(each).__module__.startswith(("torch.nn.parallel", "torch.distributed")):
            return (
                f"{type(each).__name__} has laid out its buckets already: convert before wrapping"
            )
    found = [each for each in module.modules() if isinstance(each, KINDS)]
    if not found:
        return f"{name} has no convolutions over images"
    if any(each.groups > 1 for each in found):
        return f"{name} has grouped convolutions, which may become many times slower"
    for each in found:
        weight = each._parameters.get("weight")
        if weight is None or nn.parameter.is_lazy(weight):
            return f"{name}: a weight is computed from others, or not there yet"
        if weight.untyped_storage().nbytes() != weight.numel() * weight.element_size():
            return f"{name}: weights share one block of memory"
    if all(_is_last(each.weight) for each in found):
        return f"{name}: the script stores them so"
    return None


def weights_of(module: nn.Module) -> list[torch.Tensor]:
    """The weights of its convolutions over images."""
    return [each.weight for each in module.modules() if isinstance(each, KINDS)]


def store(weights: list[torch.Tensor], memory_format: torch.memory_format) -> None:
    """Store them so, in place: they stay the parameters that they are."""
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=memory_format)
        if weight.grad is not None:
            weight.grad.data = weight.grad.data.contiguous(memory_format=memory_format)


def convert_state(optimizer: torch.optim.Optimizer, weights: list[torch.Tensor]) -> None:
    """Moments from before, or from a checkpoint: fused kernels read them in the order of the weights."""
    for weight in weights:
        memory_format = torch.channels_last if _is_last(weight) else torch.contiguous_format
        state = optimizer.state.get(weight, {})
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                state[key] = value.contiguous(memory_format=memory_format)


class _Kept:
    """What a forward changes beside its result, to be put back."""

    def __init__(self, module: nn.Module) -> None:
        self._buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
        self._random = torch.get_rng_state()
        self._on_cuda = any(each.is_cuda for each in module.parameters())
        self._cuda = torch.cuda.get_rng_state_all() if self._on_cuda else []

    def put_back(self) -> None:
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        torch.set_rng_state(self._random)
        if self._on_cuda:
            torch.cuda.set_rng_state_all(self._cuda)


def apply(value: Any, report: Report) -> None:
    """At the first call of what the script trains, before its first update."""
    watch_compiler()
    seen: set[int] = set()
    converted: dict[int, list[torch.Tensor]] = {}
    optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def around(call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if id(module) in converted:
            return _as_before(call(*args, **kwargs))
        if id(module) in seen or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        seen.add(id(module))
        why = why_not_converted(module)
        if why is not None:
            report.refused(why)
            return call(*args, **kwargs)
        made, why = _tried(call, module, args, kwargs, looks=not compiler_is_used())
        if why is not None:
            report.refused(why)
            return made
        weights = converted[id(module)] = weights_of(module)

        def toggle(on: bool) -> None:
            store(weights, torch.channels_last if on else torch.contiguous_format)
            for optimizer in optimizers:
                convert_state(optimizer, weights)

        report.applied(
            f"{len(weights)} convolutions of {type(module).__name__}",
            toggle=None if compiler_is_used() else toggle,
        )
        return _as_before(made)

    def stepping(optimizer: torch.optim.Optimizer) -> None:
        optimizers.add(optimizer)
        for weights in converted.values():
            convert_state(optimizer, weights)

    around_training_calls(around, evaluating=True)
    at_step_start(stepping, report)


def _tried(
    call: Any, module: nn.Module, args: Any, kwargs: Any, *, looks: bool
) -> tuple[Any, str | None]:
    """The first call, and why it had to be made without the change: a model that asks for the order in memory
    (`x.view(n, -1)`) says so here. looks: for random numbers, which what is compiled draws its own way.
    """
    name = type(module).__name__
    kept = _Kept(module)
    store(weights_of(module), torch.channels_last)
    drawing: list[str] = []

    def look(function: Any, given: Any, made: Any) -> None:
        """Dropout over images draws in the order of memory, and so would drop other elements."""
        if torch.Tag.nondeterministic_seeded in function.tags:
            images = (each for each in (*given, made) if isinstance(each, torch.Tensor))
            if any(_is_last(each) and not each.is_contiguous() for each in images):
                drawing.append(function.overloadpacket.__name__)

    try:
        with WatchedOperations(look) if looks else nullcontext():
            made = call(*args, **kwargs)
        if not drawing:
            return made, None
        why = f"{name} draws random numbers over images ({drawing[-1]}): others, in another order"
    except RuntimeError as error:
        why = f"{name} does not run so: {first_line(error)}"
    store(weights_of(module), torch.contiguous_format)
    kept.put_back()
    return call(*args, **kwargs), why


def _as_before(made: Any) -> Any:
    """Images in what a model gives, in the order that the script expects."""
    return each_tensor(made, lambda tensor: tensor.contiguous() if tensor.dim() == 4 else tensor)


def _is_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
