"""What was seen of the model that the script calls, and of what it is given: how much of the tokens is padding.

Padding is looked at in a few batches, on the CPU only, never on a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hotloop.core.census import DdpUse, PaddingUse
from hotloop.probe.attach.loader_seen import first_tensor, named_tensors
from hotloop.probe.attach.sites import Sites, caller
from hotloop.probe.machine import seconds_since_start

MAX_SHAPES = 64
DDP_LOOKS = 12
"""Forwards after which DDP's own log is read: it is written in the first ten."""
_PARALLEL = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")


class ModelSeen:
    """What outermost forwards in grad mode show."""

    def __init__(self, sites: Sites, padding: Padding) -> None:
        self._sites = sites
        self._padding = padding
        self.start_s: float | None = None
        self.start_so_far: Callable[[], float | None] = seconds_since_start
        self.trainer: dict[str, Any] = {}
        """Fields of the census that a Trainer around the loop tells."""
        self._parallel: str | None = None
        self._channels_last: bool | None = None
        self._shapes: set[tuple[int, ...]] = set()
        self._looked_at: set[type] = set()
        self._ddp: DdpUse | None = None
        self._ddp_looks = 0

    def used(self) -> dict[str, Any]:
        """Fields of the census. No number of shapes where none was seen, or too many to count."""
        return {
            "start_s": self.start_s,
            **self.trainer,
            "parallel": self._parallel,
            "ddp": self._ddp,
            "channels_last": self._channels_last,
            "input_shapes": len(self._shapes) if 0 < len(self._shapes) < MAX_SHAPES else None,
        }

    def called(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Its forward ended."""
        kind = type(module)
        if kind not in self._looked_at:
            self._looked_at.add(kind)
            self._look(module)
        if isinstance(module, DistributedDataParallel) and self._ddp_looks < DDP_LOOKS:
            self._ddp_looks += 1
            self._look_at_ddp(module)
        if len(self._shapes) < MAX_SHAPES and not isinstance(module, torch.nn.modules.loss._Loss):
            first = first_tensor(args) if args else first_tensor(kwargs)
            if first is not None:
                self._shapes.add(tuple(first.shape))
        if not self._padding.from_loader:
            self._padding.look(
                [*args, kwargs], lambda: self._sites.name(self._sites.place(caller()))
            )

    def _look(self, module: torch.nn.Module) -> None:
        for kind in type(module).__mro__:
            if kind.__name__ in _PARALLEL and kind.__module__.startswith("torch."):
                self._parallel = kind.__name__
        for each in module.modules():
            # One input channel, or a 1 x 1 kernel, is stored in both orders at once.
            if isinstance(each, torch.nn.Conv2d) and min(each.weight.shape[1:3]) > 1:
                last = each.weight.is_contiguous(memory_format=torch.channels_last)
                self._channels_last = last and self._channels_last is not False

    def _look_at_ddp(self, module: Any) -> None:
        try:
            unused = module._get_ddp_logging_data().get("unused_parameter_size")
        except (AttributeError, RuntimeError):  # no part of torch's public interface
            unused = None
        before = self._ddp or DdpUse(False, False, None)
        searches = module.find_unused_parameters and not module.static_graph
        self._ddp = DdpUse(
            bool(searches or before.find_unused_parameters),
            bool(module.gradient_as_bucket_view or before.gradient_as_bucket_view),
            before.unused_bytes if unused is None else max(int(unused), before.unused_bytes or 0),
        )


FIRST = 16
EVERY = 50
LOOKS = 24
_SOURCES = ("attention_mask", "labels", "ids")
"""From what says it for sure to what only looks like it."""
IGNORED = -100
"""torch's `ignore_index`: a run of it at the end of labels is padding, elsewhere it is a prompt."""
SHORTEST = 8
MULTIPLE = 8
"""`dynamic_padding` rounds lengths up to it; those of batches that are all multiples of it are taken to stay so."""
RARELY = 0.05
"""Rows in which an id that fills up ends may hold it elsewhere, too; a feature that counts is 0 everywhere."""


class _Trailing:
    """Runs of one id at the ends of rows."""

    def __init__(self) -> None:
        self.padded = 0
        self._rows = 0
        self._elsewhere = 0
        """Rows that hold it before the run, too."""
        self._lengths: set[int] = set()

    @property
    def fills_up(self) -> bool:
        """Sentences are of different lengths, and what fills them up is no word of theirs."""
        return len(self._lengths) > 1 and self._elsewhere <= RARELY * self._rows

    def add(self, tensor: torch.Tensor, value: int) -> None:
        same = tensor == value
        runs = same.flip(-1).long().cumprod(-1).sum(-1)
        self._rows += runs.numel()
        self._elsewhere += int((same.sum(-1) > runs).sum())
        self._lengths.update(runs.tolist())
        self.padded += int(runs[runs >= 2].sum())  # a single one is a row that happens to end in it


class _Masked:
    """Lengths of the rows in each attention mask that was looked at, and what its batch was padded to."""

    def __init__(self) -> None:
        self._looks: list[int] = []
        self._batches: list[tuple[list[int], int]] = []
        self._tokens = 0

    def add(self, look: int, mask: torch.Tensor) -> None:
        self._looks.append(look)
        self._batches.append((_spans(mask).tolist(), mask.shape[1]))
        self._tokens += int((mask != 0).sum())

    def left(self) -> tuple[float | None, float | None]:
        """Shares of padding in batches cut to their longest row: of these batches, and of their rows sorted by length."""
        several = len(set(self._looks)) < len(self._looks)  # columns, each with lengths of its own
        return self._cut(self._batches), None if several else self._cut(self._sorted())

    def _cut(self, batches: list[tuple[list[int], int]]) -> float:
        to = math.gcd(MULTIPLE, *(width for _, width in self._batches))
        longest = ((len(rows), max(rows) or width, width) for rows, width in batches)
        made = sum(num * min(-(-row // to) * to, width) for num, row, width in longest)
        return 1 - self._tokens / made

    def _sorted(self) -> list[tuple[list[int], int]]:
        """Batches of the same sizes."""
        rows = iter(sorted(length for batch, _ in self._batches for length in batch))
        widest = max(width for _, width in self._batches)
        return [(list(islice(rows, len(batch))), widest) for batch, _ in self._batches]


def _spans(mask: torch.Tensor) -> torch.Tensor:
    """Columns of each row from the first that is not masked to the last, on whichever side it is padded."""
    width = mask.shape[1]
    there = (mask != 0) * torch.arange(1, width + 1)
    back = (mask != 0) * torch.arange(width, 0, -1)
    return (there.amax(1) + back.amax(1) - width).clamp(min=0)


class Padding:
    """Sums over the batches that were looked at."""

    def __init__(self) -> None:
        self._num = 0
        self._looks = 0
        self._seen: dict[str, tuple[int, int]] = {}
        self._ids: dict[int, _Trailing] = {}
        self._masked = _Masked()
        self.from_loader = False
        """Batches come from a loader; else what the model is called with is looked at."""
        self._site: str | None = None

    def look(self, batch: Any, site: Callable[[], str | None]) -> None:
        """Maybe look at this batch. site: asked for its place, if so."""
        looks = self._looks < LOOKS and (self._num < FIRST or (self._num + 1) % EVERY == 0)
        self._num += 1
        if not looks:
            return
        self._looks += 1
        self._site = site()
        with torch.no_grad():
            for name, tensor in named_tensors(batch, depth=3, most=8):
                if (
                    tensor.device.type == "cpu"
                    and tensor.dim() == 2
                    and tensor.shape[1] >= SHORTEST
                    and len(tensor)
                ):
                    self._add(name, tensor)

    def use(self) -> PaddingUse | None:
        """By the most certain source that was there."""
        for source in _SOURCES:
            padded, total = self._seen.get(source, (0, 0))
            if total:
                words = source
                if source == "ids":
                    # The id that most rows end in, if it looks like one that fills them up.
                    filling = [pair for pair in self._ids.items() if pair[1].fills_up]
                    found = max(filling, key=lambda pair: pair[1].padded, default=None)
                    words = f"trailing id {found[0]}" if found else "trailing id"
                    padded = found[1].padded if found else 0
                left = self._masked.left() if source == "attention_mask" else (None, None)
                return PaddingUse(total, padded / total, words, self._site, *left)
        return None

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if name == "attention_mask":
            self._sum("attention_mask", int((tensor == 0).sum()), tensor.numel())
            self._masked.add(self._looks, tensor)
        elif tensor.dtype not in (torch.int64, torch.int32):
            return
        elif name == "labels":
            if int(tensor.min()) == IGNORED:
                ignored = _Trailing()
                ignored.add(tensor, IGNORED)
                self._sum("labels", ignored.padded, tensor.numel())
        elif int(tensor.max()) > 1:  # not a mask, nor one-hot
            value = int(tensor[:, -1].mode().values)
            self._ids.setdefault(value, _Trailing()).add(tensor, value)
            self._sum("ids", 0, tensor.numel())

    def _sum(self, source: str, padded: int, total: int) -> None:
        before = self._seen.get(source, (0, 0))
        self._seen[source] = (before[0] + padded, before[1] + total)
