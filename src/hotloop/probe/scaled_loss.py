"""The loss that goes backward as the script has it, without the factor of its gradient scaler."""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import ref

import torch

from hotloop.probe.entry import around_call


class ScaledLoss:
    """Remembers what was scaled lately. That factor changes in the middle of a run, and two runs may change it at different steps."""

    def __init__(self) -> None:
        self._scaled: deque[tuple[ref[torch.Tensor], torch.Tensor]] = deque(maxlen=8)

    def install(self) -> None:
        around_call(torch.amp.GradScaler, "scale", self._scale)

    def unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss`, or what was scaled to it."""
        return next((given for held, given in self._scaled if held() is loss), loss)

    def _scale(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        scaled = original(scaler, *args, **kwargs)
        given = args[0] if args else kwargs.get("outputs")
        if isinstance(given, torch.Tensor) and given.numel() == 1:
            self._scaled.append((ref(scaled), given.detach()))
        return scaled
