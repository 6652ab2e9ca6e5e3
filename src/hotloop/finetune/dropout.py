"""Dropout on a CPU that draws 16 bits for a number, four numbers at a time.

torch draws one number after the other wherever the processor is not Intel's: on an AMD EPYC a tenth of a step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotloop.core.child import NO_DROPOUT


def dropout(x: Tensor, p: float) -> Tensor:
    """As `F.dropout` in training, with `p` to the next 1/65536. Draws from torch's generator."""
    if x.device.type != "cpu":
        return F.dropout(x, p)
    if torch.compiler.is_compiling():
        units: Tensor = torch.ops.hotloop.kept_units(x.detach(), p)
        return x * units
    return x * kept_units(x.shape, p, x.dtype)


def kept_units(shape: torch.Size, p: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """By what dropout multiplies each number: 0 or 1 / (1 - p); 1 where a trial asks that nothing is dropped."""
    num, dropped = shape.numel(), round(p * 65536) if NO_DROPOUT not in os.environ else 0
    if not num or dropped in (0, 65536):
        return torch.full(shape, float(not dropped), dtype=dtype)
    bits = torch.empty(-(-num // 4), dtype=torch.int64).random_(-(2**63), None)
    # into the type that is wanted: comparing to bools and converting them takes seven times as long
    kept = torch.ge(
        bits.view(torch.int16)[:num], dropped - 32768, out=torch.empty(num, dtype=dtype)
    )
    return kept.mul_(65536 / (65536 - dropped)).view(shape)


def drawn(shapes: Sequence[Sequence[int]], rates: Sequence[float]) -> list[Tensor | None]:
    """What `kept_units` gives for each shape, one after the other, `None` for a rate of 0; by one draw where the rates are the same."""
    if len({*rates}) > 1 or not rates[0]:
        each_own = zip(shapes, rates, strict=True)
        return [kept_units(torch.Size(shape), p) if p else None for shape, p in each_own]
    sizes = [math.prod(shape) for shape in shapes]
    whole = [-(-size // 4) * 4 for size in sizes]  # four numbers at a time
    parts = kept_units(torch.Size([sum(whole)]), rates[0]).split(whole)  # type: ignore[no-untyped-call]
    every = zip(parts, sizes, shapes, strict=True)
    return [part[:size].view(shape) for part, size, shape in every]


class Dropout(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input


def replace_dropout(model: nn.Module) -> None:
    """In place: every `nn.Dropout` by the above, which has no weights either."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
