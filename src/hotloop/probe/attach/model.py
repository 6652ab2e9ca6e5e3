"""What was seen of the model that the script calls."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from hotloop.probe.attach.loader_seen import first_tensor
from hotloop.probe.attach.sites import variables_of

MAX_SHAPES = 64
_PARALLEL = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")


class ModelSeen:
    """Of outermost forwards in grad mode."""

    def __init__(self) -> None:
        self.start_s: float | None = None
        self.planned_steps: int | None = None
        self.parallel: str | None = None
        self.channels_last: bool | None = None
        self._shapes: set[tuple[int, ...]] = set()
        self._looked_at: set[type] = set()

    @property
    def input_shapes(self) -> int | None:
        """Distinct shapes of the first tensor; `None` where none was seen, or too many to count."""
        return len(self._shapes) if 0 < len(self._shapes) < MAX_SHAPES else None

    def called(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Its forward ended."""
        kind = type(module)
        if kind not in self._looked_at:
            self._looked_at.add(kind)
            self._look(module)
        if len(self._shapes) < MAX_SHAPES and not isinstance(module, torch.nn.modules.loss._Loss):
            first = first_tensor(args) if args else first_tensor(kwargs)
            if first is not None:
                self._shapes.add(tuple(first.shape))

    def _look(self, module: torch.nn.Module) -> None:
        for kind in type(module).__mro__:
            if kind.__name__ in _PARALLEL and kind.__module__.startswith("torch."):
                self.parallel = kind.__name__
        for each in module.modules():
            # One input channel, or a 1 x 1 kernel, is stored in both orders at once.
            if isinstance(each, torch.nn.Conv2d) and min(each.weight.shape[1:3]) > 1:
                last = each.weight.is_contiguous(memory_format=torch.channels_last)
                self.channels_last = last and self.channels_last is not False


def planned_steps(frame: FrameType | None) -> int | None:
    """How many steps a trainer around this frame says that it will make; `None` without one."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("transformers.trainer", "lightning.pytorch", "pytorch_lightning")):
            holder = variables_of(frame).get("self")
            for owner in (getattr(holder, "state", None), getattr(holder, "trainer", None), holder):
                steps = getattr(owner, "max_steps", None)
                if isinstance(steps, int) and steps > 0:
                    return steps
        frame = frame.f_back
    return None
