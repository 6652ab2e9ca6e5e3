"""How far each tensor of weights has come from where it began, at a few steps of somebody else's script.

Only in runs whose losses are compared. A loss hardly shows a missing weight decay, or updates that were left
out; the way that the weights have gone does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from hotloop.core.parity_records import TensorUpdates, WeightUpdates
from hotloop.probe.foreign_process import parameters_of

SAMPLED_STEPS = frozenset((1, 2, 3, 4, 6, 8, 11, 14, *range(18, 121, 6)))
"""Updates after which the weights are looked at: most of them early, where rounding is still small."""
MAX_OPTIMIZERS = 4
MAX_TENSORS = 256
"""Tensors of one optimizer, evenly chosen."""
MAX_ELEMENTS = 1 << 16
"""Elements of one tensor, evenly chosen: a copy of all weights might not fit into the device's memory."""
SAMPLE = 16
"""Elements of one tensor that are kept as they are."""


class _Tensor:
    """One tensor of weights, and what was seen of it."""

    def __init__(self, weights: torch.Tensor) -> None:
        self._weights = weights
        self._start = _elements(weights.detach()).clone()
        self._steps: list[int] = []
        self._seen: list[list[Any]] = []

    def look(self, step: int) -> None:
        moved = _elements(self._weights.detach()) - self._start
        gradient, slope = self._weights.grad, None
        if gradient is not None and gradient.layout == torch.strided:
            slope = _elements(gradient)
        self._steps.append(step)
        self._seen.append(
            [
                moved.norm(),
                (moved * self._start).sum(),
                None if slope is None else slope.norm(),
                _sample(moved),
                None if slope is None else _sample(slope),
            ]
        )

    def updates(self) -> TensorUpdates:
        columns = [[_plain(value) for value in seen] for seen in self._seen]
        moved, along, gradient, moved_sample, gradient_sample = zip(*columns, strict=True)
        start = float(self._start.norm())
        samples, size = (moved_sample, gradient_sample), self._weights.numel()
        return TensorUpdates(tuple(self._steps), start, moved, along, gradient, *samples, size)


class WeightDigest:
    """Called before and after every update. Weights that cannot be read are none: the losses are what counts."""

    def __init__(self) -> None:
        self._failed = False
        self._tensors: dict[Optimizer, list[_Tensor]] = {}
        self._num_updates: Counter[Optimizer] = Counter()

    def before(self, optimizer: Optimizer) -> None:
        """Keep the weights as they are, if this is its first update."""
        if optimizer not in self._tensors and len(self._tensors) < MAX_OPTIMIZERS:
            self._tried(self._keep, optimizer)

    def after(self, optimizer: Optimizer) -> None:
        """Look at the weights, if it is the turn of this update."""
        if optimizer in self._tensors:
            self._num_updates[optimizer] += 1
            if self._num_updates[optimizer] in SAMPLED_STEPS:
                self._tried(self._look, optimizer)

    def updates(self) -> WeightUpdates | None:
        """What was seen; reads from the device."""
        if self._failed:
            return None
        kept = self._tensors.items()
        updated = (tensors for optimizer, tensors in kept if self._num_updates[optimizer])
        return WeightUpdates(tuple(each.updates() for tensors in updated for each in tensors))

    def _keep(self, optimizer: Optimizer) -> None:
        weights = parameters_of(optimizer)
        every = max(1, -(-len(weights) // MAX_TENSORS))
        self._tensors[optimizer] = [_Tensor(each) for each in weights[::every] if _is_plain(each)]

    def _look(self, optimizer: Optimizer) -> None:
        for tensor in self._tensors[optimizer]:
            tensor.look(self._num_updates[optimizer])

    def _tried(self, action: Callable[[Optimizer], None], optimizer: Optimizer) -> None:
        if self._failed:
            return
        try:
            action(optimizer)
        except (RuntimeError, TypeError, NotImplementedError):
            self._failed = True
            self._tensors.clear()


def _is_plain(weights: Any) -> bool:
    """Sharded and quantized ones have elements that are not theirs alone."""
    return (
        type(weights) in (torch.Tensor, torch.nn.Parameter)
        and weights.is_floating_point()
        and weights.layout == torch.strided
        and weights.numel() > 0
    )


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """Evenly chosen, in the order of their indices however they lie in memory."""
    flat = tensor.reshape(-1)
    chosen = flat[:: max(1, -(-flat.numel() // MAX_ELEMENTS))]
    return chosen.double() if chosen.is_cpu or chosen.is_cuda else chosen.float()


def _sample(elements: torch.Tensor) -> torch.Tensor:
    return elements[:: max(1, elements.numel() // SAMPLE)][:SAMPLE].clone()


def _plain(value: Any) -> Any:
    if value is None:
        return None
    if value.dim():
        return tuple(float(f"{each:.7g}") for each in value.tolist())
    return float(value)
