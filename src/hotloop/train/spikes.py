"""Steps that stand far above the ones before them: the same rule twice, on the host and on the device.

    spike      gradient norm > spike_factor * median,  or  loss > spike_loss + median
    median     over the last `window_steps` steps before, those that are no numbers left out

A median and not a mean: the spikes themselves are in the window, and a mean or a standard deviation
would follow them. A level that stays is no spike any more once it fills half of the window. What to do
about spikes: PaLM (Chowdhery et al. 2022, arXiv 2204.02311, section 5.1) went back and passed over the
data; OLMo-core's `SkipStepOptimizer` leaves the update out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

import torch
from torch import Tensor

from hotloop.core.config import StabilityConfig

NAMES = ("grad_norm", "loss")
"""What is watched, in the order of the rows below."""


@dataclass(frozen=True, slots=True)
class Spike:
    """Why a step is one."""

    name: str
    value: float
    median: float

    def __str__(self) -> str:
        what = self.name.replace("grad_norm", "gradient norm")
        return f"{what} {self.value:.4g}, where {self.median:.4g} is usual"


class SpikesOnHost:
    """Looks at values that have arrived on the host: costs microseconds, and nothing on the device."""

    def __init__(self, config: StabilityConfig) -> None:
        self._config = config
        self._recent = {name: deque[float](maxlen=config.window_steps) for name in NAMES}

    def look(self, values: dict[str, float]) -> Spike | None:
        """True if this step is a spike; it enters the window after that."""
        found = None
        for name in NAMES:
            if name not in values:
                continue
            value, middle = values[name], self._median(name)
            if middle is not None and math.isfinite(value) and value > self._limit(name, middle):
                found = found or Spike(name, value, middle)
            self._recent[name].append(value)
        return found

    def _median(self, name: str) -> float | None:
        """The lower of two, of those that are numbers; `None` until they are half of the window."""
        known = [value for value in self._recent[name] if math.isfinite(value)]
        return median_low(known) if len(known) >= self._config.window_steps // 2 else None

    def _limit(self, name: str, middle: float) -> float:
        if name == "loss":
            return middle + self._config.spike_loss
        return middle * self._config.spike_factor

    def state(self) -> list[list[float | None]]:
        """A row per name of `NAMES`, oldest first; JSON-ready."""
        return [_without_infinity(self._recent[name]) for name in NAMES]

    def restore(self, rows: Sequence[Sequence[float | None]]) -> None:
        for name, row in zip(NAMES, rows, strict=True):
            self._recent[name].clear()
            self._recent[name].extend(math.inf if value is None else value for value in row)


class SpikesOnDevice:
    """Decides where the values are, so that the update can be left out without the host knowing yet."""

    def __init__(self, config: StabilityConfig, device: torch.device) -> None:
        self._needed = config.window_steps // 2
        self._recent = torch.full((len(NAMES), config.window_steps), math.inf, device=device)
        self._at = 0  # on the host, as every step takes one place
        self._factor = torch.tensor([config.spike_factor, 1.0], device=device)
        self._above = torch.tensor([0.0, config.spike_loss], device=device)

    def look(self, grad_norm: Tensor, loss: Tensor) -> Tensor:
        """A bool () on the device: whether this step is a spike; it enters the window after that."""
        now = torch.stack(
            [grad_norm.detach().float().reshape(()), loss.detach().float().reshape(())]
        )
        known = self._recent.isfinite().sum(dim=1, keepdim=True)
        # Not nanmedian: on a GPU it reads its index back, which waits for the device.
        place = ((known - 1) // 2).clamp(min=0)
        middle = self._recent.sort(dim=1).values.gather(1, place).squeeze(1)
        above = (now > middle * self._factor + self._above) & now.isfinite()
        found = (above & (known.squeeze(1) >= self._needed)).any()
        self._recent[:, self._at] = now.where(now.isfinite(), math.inf)
        self._at = (self._at + 1) % self._recent.shape[1]
        return found

    def state(self) -> list[list[float | None]]:
        """As `SpikesOnHost.state`. Waits for the device: only for a checkpoint."""
        return [_without_infinity(row) for row in self._recent.roll(-self._at, dims=1).tolist()]

    def restore(self, rows: Sequence[Sequence[float | None]]) -> None:
        size = self._recent.shape[1]
        padded = [
            ([math.inf] * size + [math.inf if value is None else value for value in row])[-size:]
            for row in rows
        ]
        self._recent.copy_(torch.tensor(padded))
        self._at = 0


def _without_infinity(row: Iterable[float]) -> list[float | None]:
    """JSON has no number for it."""
    return [value if math.isfinite(value) else None for value in row]
