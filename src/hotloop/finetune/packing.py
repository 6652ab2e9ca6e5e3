"""Examples one after the other in one row, and attention that stays inside each, computed for examples of similar length together.

The tokens of a step are padded for the products of attention alone, within groups of similar length; all else
is computed once per token. The row is filled up, as `filled` says, with one more example that nothing reads (one example
alone is made longer, and its attention masked):
oneDNN makes a new kernel for each new number of rows, which took a quarter of the time of the products in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from hotloop.finetune.dropout import drawn
from hotloop.finetune.packed_attention import WITHOUT_CUDNN, running
from hotloop.train.batches import Inputs

ATTENTION = "hotloop_examples"
"""Its name among the attention functions of transformers."""
WIDTHS = np.array([16, 32, 48, 64, 96, *(2**power for power in range(7, 17))])
"""Examples of up to as many tokens form a group."""


def filled(num_tokens: int) -> int:
    """A multiple of 16; up to 128 tokens of 4: 32 numbers of rows, made in a fifth of a second, for products of fewer rows."""
    multiple = 4 if num_tokens <= 128 else 16
    return -(-num_tokens // multiple) * multiple


@dataclass(slots=True)
class Layout:
    """Where the tokens of a row are."""

    starts: Tensor
    """(examples) First token of each."""
    there: Tensor
    """(3 x cells x heads) For each cell of the groups, head by head, its row among (tokens x 3 x heads): queries, then keys, then values."""
    back: Tensor
    """(tokens x 3 x heads) The inverse."""
    masks: Sequence[Tensor]
    """For each group (examples x heads, 1, width): -inf for cells without a token, else 0. The last example of the last group may be none."""
    num_tokens: int
    last: object = None
    """The layer that computes first tokens alone, where no others are read from there on."""
    positions: Tensor | None = None
    """(1, T), for a model whose class takes none."""
    computed: tuple[Sequence[object], Tensor | None] = (), None
    """Layers that were computed together, and what they made of it."""
    tensors: Sequence[Tensor] = ()
    """For compiled layers: `there`, `back`, all masks in one, and the shape of each, so many of them whatever the groups."""

    @property
    def is_one(self) -> bool:
        """One example, whose rows are the cells in another order."""
        mask = self.masks[0]
        return mask.shape[2] == self.num_tokens and 3 * mask.numel() == len(self.back)

    def shapes_of_weights(self, *, first: bool = False) -> list[tuple[int, ...]]:
        """Of each group's attention; with `first` that of the first token of each example."""
        sizes = ((len(mask), mask.shape[2]) for mask in self.masks)
        return [(num, 1 if first else width, width) for num, width in sizes]

    def with_tensors(self) -> Layout:
        shapes = torch.zeros(
            len(WIDTHS) + 1, 2, dtype=torch.int64
        )  # on the CPU, where they are read
        for number, mask in enumerate(self.masks):
            shapes[number, 0], shapes[number, 1] = len(mask), mask.shape[2]
        mask = torch.cat([each.flatten() for each in self.masks])
        return replace(self, tensors=[self.there, self.back, mask, shapes])

    @staticmethod
    def of_tensors(tensors: Sequence[Tensor], num_tokens: int) -> Layout:
        """What attention needs of the one that had these."""
        there, back, mask, shapes = tensors
        sizes = [(num, width) for num, width in shapes.tolist() if num]
        parts = mask.split([num * width for num, width in sizes])  # type: ignore[no-untyped-call]
        masks = [part.view(num, 1, width) for part, (num, width) in zip(parts, sizes, strict=True)]
        return Layout(there[:0], there, back, masks, num_tokens)

    def back_of_one(self) -> Tensor:
        """`back` for what has one row per token and head, as the queries."""
        return self.back.view(self.num_tokens, 3, -1)[:, 0].flatten()


def packed(tokens: Sequence[np.ndarray], heads: int) -> tuple[list[int], Inputs]:
    """Ids and positions (1, T), where the tokens of examples are, and the tensors of a `Layout`; with the order of the examples, the longest first."""
    order = sorted(range(len(tokens)), key=lambda index: -len(tokens[index]))
    lengths = [len(tokens[index]) for index in order]
    fill = filled(sum(lengths)) - sum(lengths)
    parts = [tokens[index] for index in order] + [np.repeat(tokens[0][:1], fill)]
    is_one = len(lengths) == 1
    sizes = np.array([lengths[0] + fill] if is_one else [*lengths, fill] if fill else lengths)
    starts = np.cumsum(sizes) - sizes
    of = np.repeat(np.arange(len(sizes)), sizes)
    column = np.arange(len(of)) - starts[of]
    groups = np.searchsorted(WIDTHS, sizes)
    groups[-1] = groups[max(len(lengths) - 1, 0)] if fill else groups[-1]
    masks, there, back, cells = [], [], np.empty((len(of), heads), dtype=np.int64), 0
    head = np.arange(heads)
    for group in dict.fromkeys(groups.tolist()):
        inside = np.flatnonzero(groups == group)
        width = int(sizes[inside].max())
        real = np.arange(width) < sizes[inside, None]
        rows = np.where(real, starts[inside, None] + np.arange(width), starts[inside, None])
        there.append((rows[:, None, :] * 3 * heads + head[:, None]).ravel())
        own = (of >= inside[0]) & (of <= inside[-1])
        first = cells + (of[own] - inside[0]) * width * heads + column[own]
        back[own] = first[:, None] + head * width
        cells += rows.size * heads
        is_open = real & (np.arange(width) < lengths[0])
        shut = np.where(is_open, np.float32(0), np.float32(-np.inf))
        masks.append(torch.from_numpy(np.repeat(shut, heads, 0)[:, None]))
    ids = np.concatenate(parts).astype(np.int64)
    column[len(ids) - fill :] = np.arange(fill)  # a model has positions for its longest text alone
    which = np.arange(3)[:, None]
    arrays = (
        ids[None],
        column[None],
        np.arange(len(ids) - fill),
        starts[: len(order)],
        (np.concatenate(there) + which * heads).ravel(),
        (back[:, None] + which * cells).ravel(),
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
    layout: Layout | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """As transformers calls it: (1, heads, T, width of a head) to (1, T, heads, width of a head). Raises `ValueError` for what it does not compute."""
    layout = layout or running()
    assert layout is not None
    if torch.compiler.is_compiling():
        given = query, key, value, layout.tensors, 0, dropout, scaling, None
        return torch.ops.hotloop.attention(*given)[0], None
    if sliding_window is not None and max(each.shape[2] for each in layout.masks) > sliding_window:
        raise ValueError(f"its attention has a window of {sliding_window} tokens")
    _, heads, num, size = query.shape
    kind, on_cpu = query.dtype, query.device.type == "cpu"
    rows = torch.stack([each[0].transpose(0, 1) for each in (query, key, value)], 1)
    # small products: what bf16 saves on a CPU is less than what it costs
    rows = (rows.float() if on_cpu else rows).view(-1, size)
    scale = size**-0.5 if scaling is None else scaling
    with torch.autocast(query.device.type, enabled=False):
        if dropout and on_cpu:  # torch's own takes far longer with dropout
            shapes = layout.shapes_of_weights()
            units = drawn(shapes, [dropout] * len(shapes))
            found = attended(rows, layout, units, scale)[0].reshape(-1, size)
        else:
            outputs = []
            with nullcontext() if on_cpu else sdpa_kernel(WITHOUT_CUDNN):
                for mask, *own in in_groups(rows, layout):
                    q, k, v = (each.view(-1, heads, *each.shape[1:]) for each in own)
                    closed = mask.view(-1, heads, 1, mask.shape[2]).to(q.dtype)
                    out = F.scaled_dot_product_attention(q, k, v, closed, dropout, scale=scale)
                    outputs.append(out.flatten(0, 1))
            found = _gathered(outputs, layout).reshape(-1, size)
    return found.view(1, num, heads, size).to(kind), None


def in_groups(rows: Tensor, layout: Layout) -> Iterator[tuple[Tensor, ...]]:
    """Mask, queries, keys and values of each group; (examples x heads, width, width of a head) the last three. `rows`: (tokens x 3 x heads, width of a head)."""
    size = rows.shape[1]
    if layout.is_one:
        yield layout.masks[0], *rows.view(layout.num_tokens, 3, -1, size).permute(1, 2, 0, 3)
        return
    where = layout.there, layout.back
    cells = _Spread.apply(rows, *where) if rows.requires_grad else rows.index_select(0, where[0])  # type: ignore[no-untyped-call]
    sizes = [mask.numel() for mask in layout.masks]
    parts = (each.split(sizes) for each in cells.chunk(3))
    for mask, *own in zip(layout.masks, *parts, strict=True):
        yield mask, *(each.view(len(mask), -1, size) for each in own)


def _gathered(found: Sequence[Tensor], layout: Layout) -> Tensor:
    """(tokens x heads, width of a head) of what each group has, (examples x heads, width, width of a head); of one example (tokens, heads, width of a head), in another order in memory."""
    size = found[0].shape[2]
    if layout.is_one:
        return found[0].transpose(0, 1)
    return torch.cat([each.reshape(-1, size) for each in found]).index_select(0, layout.back_of_one())  # fmt: skip


def attended(
    rows: Tensor, layout: Layout, units: Sequence[Tensor | None], scale: float, *, first: bool = False
) -> tuple[Tensor, list[Any]]:  # fmt: skip
    """For each token (with `first` the first one of each example) and head a row of attention within its example.

    `units`: for each group by what dropout multiplies its weights. And what `attended_backward` takes, five for each group: queries, keys, values, weights, and by what dropout multiplied them.
    """
    found, groups = list[Tensor](), list[Any]()
    for (mask, q, k, v), kept in zip(in_groups(rows, layout), units, strict=True):
        q = q[:, :1] if first else q
        weights = torch.baddbmm(mask, q, k.mT, alpha=scale).softmax(-1)
        found.append(torch.bmm(times(weights, kept), v))
        groups += q, k, v, weights, kept
    if first:
        size, num_heads = rows.shape[1], len(rows) // layout.num_tokens // 3
        return torch.cat(found).view(-1, size)[: len(layout.starts) * num_heads], groups
    return _gathered(found, layout), groups


def attended_backward(
    gradient: Tensor, groups: Sequence[Any], layout: Layout, scale: float, *, first: bool
) -> Tensor:
    """The gradient of `rows`; of one example (tokens, 3, heads, width of a head), in another order in memory."""
    size, found = gradient.shape[1], []
    if layout.is_one and not first:
        parts = [gradient.view(layout.num_tokens, -1, size).transpose(0, 1).float()]
    else:
        where = torch.arange(len(gradient)) if first else layout.back_of_one()
        sizes = [each.shape[0] * each.shape[1] for each in groups[::5]]
        # 0 for no token
        cells = gradient.new_zeros(sum(sizes), size, dtype=torch.float32)
        cells.index_copy_(0, where, gradient.float())
        parts = [part.view(q.shape) for part, q in zip(cells.split(sizes), groups[::5], strict=True)]  # type: ignore[no-untyped-call]  # fmt: skip
    for number, part in enumerate(parts):
        q, k, v, weights, units = groups[5 * number : 5 * number + 5]
        slopes = times(torch.bmm(part, v.mT), units)
        slopes = torch._softmax_backward_data(slopes, weights, -1, weights.dtype).mul_(scale)
        of_q = F.pad(torch.bmm(slopes, k), (0, 0, 0, k.shape[1] - q.shape[1]))
        of_v = torch.bmm(times(weights, units).mT, part)
        found.append([of_q, torch.bmm(slopes.mT, q), of_v])
    if layout.is_one:
        return torch.stack(found[0]).permute(2, 0, 1, 3)
    cells = torch.cat([each.view(-1, size) for kind in zip(*found, strict=True) for each in kind])
    return cells.index_select(0, layout.back)


def times(x: Tensor, units: Tensor | None) -> Tensor:
    return x if units is None else x * units
