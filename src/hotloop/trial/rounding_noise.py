"""A script as it is, whose numbers are rounded otherwise: what it makes of that is what a harmless change may do.

Runs inside the foreign interpreter, only in runs whose losses are compared. The weights that the script begins with,
and the gradients of each update, carry noise relative to their size: a change that sums in another order, or rounds
to fewer digits, does that too, and training amplifies both alike. Nothing is drawn from the script's generators.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from hotloop.core.child import ROUNDING_NOISE
from hotloop.optimizations.hooks import around_training_calls
from hotloop.probe.entry import before_step


class RoundingNoise:
    """Multiplies by `1 + size * normal`, of a generator of its own."""

    def __init__(self, size: float, seed: int) -> None:
        self._size, self._seed = size, seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._weights: dict[int, torch.Tensor] = {}
        """Those that carry it; held, so that no other tensor gets their id."""

    def start(self, weights: Iterable[torch.Tensor]) -> None:
        """Once for each."""
        for each in weights:
            if each.requires_grad and id(each) not in self._weights and _is_plain(each):
                self._weights[id(each)] = each
                self._blur(each)

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """An update is about to be made."""
        for group in optimizer.param_groups:
            self.start(group["params"])
            for each in group["params"]:
                if each.grad is not None and _is_plain(each.grad):
                    self._blur(each.grad)

    @torch.no_grad()
    def _blur(self, tensor: torch.Tensor) -> None:
        generator = self._generators.get(tensor.device)
        if generator is None:
            generator = torch.Generator(tensor.device).manual_seed(self._seed)
            self._generators[tensor.device] = generator
        noise = torch.randn(tensor.shape, generator=generator, device=tensor.device)
        tensor.mul_((1 + self._size * noise).to(tensor.dtype))


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_floating_point()
        and tensor.layout == torch.strided
        and not isinstance(tensor, torch.nn.parameter.UninitializedParameter)
    )


def install_from_environment() -> None:
    """Begin, if the trial asked for it."""
    asked = os.environ.get(ROUNDING_NOISE)
    if not asked:
        return
    size, _, seed = asked.partition(":")
    noise = RoundingNoise(float(size), int(seed or 0))

    def around(call: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        noise.start(module.parameters())
        return call(*args, **kwargs)

    around_training_calls(around)
    before_step(noise.before)
