"""A mean of the weights beside training, which it does not touch: often better on held-out text.

ema: exponential moving average, each weight of it divided by their sum, so that what the run started
from has no share in it (as in Adam's moments, Kingma and Ba 2015; averaging itself: Polyak and Juditsky
1992). tail: the plain mean over the end of the run (stochastic weight averaging, Izmailov et al. 2018,
arXiv 1803.05407; latest weight averaging, Kaddour 2022, arXiv 2209.14981).

The mean stays on the device, 4 bytes a weight. An update reads the weights and the mean and writes the
mean, 12 bytes a weight where AdamW moves 28, and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hotloop.checkpoint import store
from hotloop.checkpoint.state import refuse_unlike, trained_weights
from hotloop.core.config import LoopConfig
from hotloop.core.errors import UsageError

FILE = "average"
"""Name of its tensor file in a checkpoint; there from the first update on."""


class Average:
    """The mean of a model's weights. What it is after a step is a function of the weights alone."""

    def __init__(self, config: LoopConfig, model: nn.Module) -> None:
        """Allocates at once: not in the last fifth of a run, when memory was thought to suffice."""
        self._config = config
        self._weights = trained_weights(model)
        self._mean = {name: torch.zeros_like(p) for name, p in self._weights.items()}
        self.num_updates = 0
        """How many times the weights were taken in; 0 means that there is no mean yet."""

    @torch.no_grad()
    def update(self, done: int) -> None:
        """Take the weights in after `done` steps, where that is due."""
        since = done - first_update(self._config)
        if since < 0 or since % self._config.averaging.every_steps:
            return
        self.num_updates = updates_until(self._config, done)
        mean: list[Tensor] = list(self._mean.values())
        weights: list[Tensor] = list(self._weights.values())
        if self.num_updates == 1:
            torch._foreach_copy_(mean, weights)
        else:
            torch._foreach_lerp_(mean, weights, newest_share(self._config, self.num_updates))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model computes with the mean meanwhile; no copy is made. Not for a compiled forward."""
        assert self.num_updates, "there is no mean yet"
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, weight in self._weights.items():
            weight.data, self._mean[name] = self._mean[name], weight.data

    def files(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint stores of it, by file: copies on the CPU."""
        if not self.num_updates:
            return {}
        return {FILE: {name: mean.cpu().clone() for name, mean in self._mean.items()}}

    def restore(self, checkpoint: store.Checkpoint) -> None:
        """Continue from a checkpoint. Raises `UsageError` when it should hold a mean and does not."""
        self.num_updates = updates_until(self._config, checkpoint.step)
        if not self.num_updates:
            return
        stored = load_average(checkpoint)
        if stored is None:
            do = "use the `averaging` of that run"
            raise UsageError("this checkpoint does not hold the mean of these weights", do=do)
        refuse_unlike("mean of", stored, self._mean)
        for name, mean in stored.items():
            self._mean[name].copy_(mean)


def load_average(checkpoint: store.Checkpoint) -> dict[str, Tensor] | None:
    """The averaged weights of a checkpoint; `None` where it was taken before the first update."""
    if f"{FILE}.safetensors" not in checkpoint.files:
        return None
    return store.load(checkpoint, (FILE,))[0][FILE]


def first_update(config: LoopConfig) -> int:
    """Steps done at the first update: such that the last step of the run is an update, too."""
    averaging, steps = config.averaging, config.train.steps
    fraction = averaging.start_fraction
    if fraction is None:
        fraction = 0.8 if averaging.name == "tail" else 0.0
    start = max(1, round(fraction * steps))
    return start + (steps - start) % averaging.every_steps


def updates_until(config: LoopConfig, done: int) -> int:
    """Updates in the first `done` steps: nothing but the tensors needs to be stored."""
    return max(0, (done - first_update(config)) // config.averaging.every_steps + 1)


def newest_share(config: LoopConfig, num_updates: int) -> float:
    """The share of the newest weights in the mean after so many updates; 1 after the first."""
    if config.averaging.name == "tail":
        return 1 / num_updates
    kept = config.averaging.decay**config.averaging.every_steps
    return (1 - kept) / (1 - kept**num_updates)
