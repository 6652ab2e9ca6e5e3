"""Keys and values of the tokens that a model has seen, so that each new token costs the arithmetic of one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from hotloop.models.shape import DecoderShape


class KeyValueCache:
    """Those of all layers for a batch of rows; `room` tokens of memory a row, taken at once.

    A token's stand at its position in its own row: rows of different lengths need no shifting.
    """

    def __init__(
        self,
        shape: DecoderShape,
        *,
        rows: Sequence[int],
        room: int,
        like: Tensor,
        fixed: bool = False,
    ) -> None:
        """`rows` names the rows; dtype and device are those of `like`.

        `fixed`: all rows stay, and queries look at the whole room, so that shapes are the same at each position.
        """
        size = (len(rows), room, shape.kv_heads or shape.heads, shape.head_width)
        self.rows, self.room, self._fixed = list(rows), room, fixed
        # Zeros: what no query sees yet is given the weight 0, and 0 times NaN is NaN.
        self._kept = [(like.new_zeros(size), like.new_zeros(size)) for _ in range(shape.layers)]
        self._length = 0
        self._places = like.new_zeros(len(rows), 0, dtype=torch.long)
        if fixed:
            from torch._dynamo import mark_static_address  # loads the compiler

            for each in chain.from_iterable(self._kept):
                mark_static_address(each)  # else no CUDA graph writes to it

    @staticmethod
    def row_bytes(shape: DecoderShape, room: int) -> int:
        """Bytes of a row in fp32."""
        return 2 * 4 * shape.layers * room * shape.kv_width

    def keep(self, rows: Sequence[int]) -> None:
        """Let go of all but `rows`."""
        if not self._fixed and self.rows != list(rows):
            at = [self.rows.index(row) for row in rows]
            self._kept = [(keys[at], values[at]) for keys, values in self._kept]
            self.rows = list(rows)

    def reach(self, places: Tensor, length: int) -> None:
        """Of the next call: the positions (B, T) of its tokens, and the tokens that the longest row then has."""
        self._places, self._length = places, self.room if self._fixed else length

    def visible(self) -> Tensor:
        """bool (B, 1, T, length): True where a query may see the key, which is not behind it."""
        keys = torch.arange(self._length, device=self._places.device)
        return keys <= self._places[:, None, :, None]

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep keys and values (B, heads, T, head_width); returns all that the layer has by now."""
        rows = torch.arange(len(k), device=k.device).unsqueeze(1)
        keys, values = self._kept[layer]
        keys[rows, self._places] = k.transpose(1, 2)
        values[rows, self._places] = v.transpose(1, 2)
        return keys[:, : self._length].transpose(1, 2), values[:, : self._length].transpose(1, 2)
