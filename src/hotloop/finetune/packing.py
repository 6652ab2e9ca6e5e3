"""Examples one after the other in one row, and attention that stays inside each, computed for examples of similar length together.

The tokens of a step are padded for the products of attention alone, within groups of similar length; all else
is computed once per token. The row is filled up to a multiple of `FULL` with one more example that nothing reads:
oneDNN makes a new kernel for each new number of rows, which took a quarter of the time of the products in bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hotloop.finetune.dropout import dropout as dropped
from hotloop.train.batches import Inputs

ATTENTION = "hotloop_examples"
"""Its name among the attention functions of transformers."""
FULL = 16
WIDTHS = np.array([16, 32, 48, 64, 96, *(2**power for power in range(7, 17))])
"""Examples of up to as many tokens form a group."""


@dataclass(slots=True)
class Layout:
    """Where the tokens of a row are."""

    starts: Tensor
    """(examples) First token of each."""
    there: Tensor
    """(cells x heads) For each cell of the groups, head by head, its row among (tokens x heads)."""
    back: Tensor
    """(tokens x heads) The inverse."""
    masks: Sequence[Tensor]
    """For each group (examples, width): which cells hold a token. The last example of the last group may be none."""
    num_tokens: int
    last: object = None
    """The attention of the last layer, where only first tokens are read from there on."""

    def spread_out(self, first: Tensor) -> Tensor:
        """(1, examples, ...) to (1, T, ...), where all other tokens have 0."""
        row = first.new_zeros(1, self.num_tokens, *first.shape[2:])
        return row.index_copy(1, self.starts, first)


def packed(tokens: Sequence[np.ndarray], heads: int) -> tuple[list[int], Inputs]:
    """Ids, positions and whether an example has that token (1, T), and the tensors of a `Layout`; with the order of the examples, the longest first."""
    order = sorted(range(len(tokens)), key=lambda index: -len(tokens[index]))
    lengths = [len(tokens[index]) for index in order]
    fill = -sum(lengths) % FULL
    parts = [tokens[index] for index in order] + [np.repeat(tokens[0][:1], fill)]
    sizes = np.array([*lengths, fill] if fill else lengths)
    starts = np.cumsum(sizes) - sizes
    of = np.repeat(np.arange(len(sizes)), sizes)
    column = np.arange(len(of)) - starts[of]
    groups = np.searchsorted(WIDTHS, sizes)
    groups[-1] = groups[max(len(sizes) - 2, 0)] if fill else groups[-1]
    masks, there, back, cells = [], [], np.empty((len(of), heads), dtype=np.int64), 0
    head = np.arange(heads)
    for group in dict.fromkeys(groups.tolist()):
        inside = np.flatnonzero(groups == group)
        width = int(sizes[inside].max())
        real = np.arange(width) < sizes[inside, None]
        rows = np.where(real, starts[inside, None] + np.arange(width), starts[inside, None])
        there.append((rows[:, None, :] * heads + head[:, None]).ravel())
        own = (of >= inside[0]) & (of <= inside[-1])
        first = cells + (of[own] - inside[0]) * width * heads + column[own]
        back[own] = first[:, None] + head * width
        cells += rows.size * heads
        masks.append(torch.from_numpy(real))
    ids = np.concatenate(parts).astype(np.int64)
    is_read = np.arange(len(ids)) < len(ids) - fill
    arrays = (
        ids[None],
        column[None],
        is_read[None],
        starts[: len(order)],
        np.concatenate(there),
        back.ravel(),
    )
    return order, (*map(torch.from_numpy, arrays), *masks)


class _Spread(torch.autograd.Function):
    """Rows to the cells of the groups. The gradient of a cell without a token is 0, so that gathering is its inverse."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(0, ctx.saved_tensors[0]), None, None


def attention(
    module: object,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: object,
    *,
    layout: Layout,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """As transformers calls it: (1, heads, T, width of a head) to (1, T, heads, width of a head).

    Of `layout.last` the results of first tokens alone.
    """
    _, heads, num, size = query.shape
    scale = size**-0.5 if scaling is None else scaling
    only_first = module is layout.last
    kind = query.dtype
    if query.device.type == "cpu":  # small products: what bf16 saves is less than what it costs
        query, key, value = query.float(), key.float(), value.float()
    cells = [each.numel() * heads for each in layout.masks]

    def spread(each: Tensor) -> list[Tensor]:
        rows = each.transpose(1, 2).reshape(num * heads, size)
        parts: Tensor = _Spread.apply(rows, layout.there, layout.back)  # type: ignore[no-untyped-call]
        return [
            part.view(len(mask), heads, -1, size)
            for part, mask in zip(parts.split(cells), layout.masks, strict=True)  # type: ignore[no-untyped-call]
        ]

    found = []
    with torch.autocast(query.device.type, enabled=False):
        groups = zip(layout.masks, spread(query), spread(key), spread(value), strict=True)
        for of_group, q, k, v in groups:
            q = q[:, :, :1] if only_first else q
            out = _attended(q, k, v, of_group[:, None, None], dropout, scale)
            found.append(out.reshape(-1, size))
    rows_of = torch.cat(found).to(kind)
    if only_first:
        first = rows_of.view(1, -1, heads, size)[:, : len(layout.starts)]
        return layout.spread_out(first), None
    return rows_of.index_select(0, layout.back).view(1, num, heads, size), None


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, p: float, scale: float) -> Tensor:
    """(examples, heads, queries, size). On a CPU torch's own takes far longer with dropout."""
    if not p or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, scale=scale)
    many, heads, num, _ = q.shape
    closed = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    closed = closed.expand(many, heads, 1, -1).reshape(many * heads, 1, -1)
    scores = torch.baddbmm(closed, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=scale)
    return torch.bmm(dropped(scores.softmax(-1), p), v.flatten(0, 1)).view(many, heads, num, -1)
