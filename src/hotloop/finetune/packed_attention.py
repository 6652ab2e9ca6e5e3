"""Attention of several examples that lie in one row, as if each were alone.

It takes the place of a decoder's own attention for the time of one forward, through the interface that transformers has
for such functions. Each example is a causal product by itself: nothing is computed between examples, and no mask of the whole
row is made. In bf16 or fp16 without dropout one kernel of variable lengths does the same on a GPU. Run on an H100, torch 2.11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

NAME = "hotloop_packed"
UNKNOWN = ("softcap", "s_aux", "position_bias", "sinks", "cache")
"""Arguments by which some models ask for more than is computed here."""
WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""cuDNN prepares a kernel for each new shape, and of examples nearly every step has new ones."""


@dataclass
class Row:
    """The examples of the row that is computed now."""

    lengths: Tensor
    """int64 (examples), on the device."""
    longest: int
    """Tokens that none of them exceeds."""
    bounds: Tensor = field(init=False)
    """int32 (examples + 1): where each begins, and the end."""

    def __post_init__(self) -> None:
        self.bounds = F.pad(self.lengths.cumsum(0), (1, 0)).to(torch.int32)

    @cached_property
    def each(self) -> list[int]:
        """The same numbers. On a GPU this waits for all that it was given to do before."""
        return list(self.lengths.tolist())


_rows: list[Any] = []
"""That of the running forward, innermost last; of an encoder a `Layout`."""


def running() -> Any:
    """The row that is computed now, if any."""
    return _rows[-1] if _rows else None


@contextmanager
def packed_attention(
    config: Any, row: object, name: str = NAME, function: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Attention of the model with this config stays inside the examples of `row`. Raises `ImportError` where transformers has no interface for it."""
    from transformers import AttentionInterface

    AttentionInterface.register(name, function or attend)
    before = config._attn_implementation
    config._attn_implementation = name
    _rows.append(row)
    try:
        yield
    finally:
        _rows.pop()
        config._attn_implementation = before


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **named: Any,
) -> tuple[Tensor, None]:
    """(1, heads, T, size) each to (1, T, heads, size). Raises `ValueError` for what it does not compute."""
    if attention_mask is not None or not (is_causal or getattr(module, "is_causal", True)):
        raise ValueError("it brings a mask of its own")
    if asked := [name for name in UNKNOWN if named.get(name) is not None]:
        raise ValueError(f"its attention has `{asked[0]}`")
    row, device = running(), query.device.type
    # what autocast makes of them: behind rotary positions in fp32 they are of several types
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    query, key, value = query.to(kind), key.to(kind), value.to(kind)
    if torch.compiler.is_compiling():
        given = query, key, value, [row.bounds], row.longest, dropout, scaling, sliding_window
        return torch.ops.hotloop.attention(*given)[0], None
    return along(row, query, key, value, dropout, scaling, sliding_window), None


def along(
    row: Row,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """The same, of tensors of one type."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        # Faster on a CPU than the kernel for grouped heads, which writes the product out; on a GPU torch 2.11 has none.
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    if not dropout and has_varlen(query):
        from torch.nn.attention.varlen import varlen_attn

        sides = (-1 if window is None else window - 1, 0)
        q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
        bounds, longest = row.bounds, row.longest
        found = varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=sides)  # fmt: skip
        assert isinstance(found, Tensor)
        return found[None]
    # Split and not sliced: the backward of a slice writes a gradient of the whole row.
    parts = [torch.split(each, row.each, dim=2) for each in (query, key, value)]
    with sdpa_kernel(WITHOUT_CUDNN) if query.is_cuda else nullcontext():
        outputs = [_alone(q, k, v, dropout, scaling, window) for q, k, v in zip(*parts, strict=True)]  # fmt: skip
    return torch.cat([each.transpose(1, 2) for each in outputs], dim=1)


def has_varlen(query: Tensor) -> bool:
    """Whether torch's kernel of variable lengths computes such heads in their type."""
    size = query.shape[3]
    fits = query.dtype in (torch.bfloat16, torch.float16) and size % 8 == 0 and size <= 256
    return query.is_cuda and fits and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _alone(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    length, mask = query.shape[2], None
    if window is not None and length > window:
        at = torch.arange(length, device=query.device)
        behind = at[:, None] - at[None, :]
        mask = (behind >= 0) & (behind < window)
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal=mask is None, scale=scaling
    )
