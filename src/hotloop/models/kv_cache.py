"""Keys and values of the tokens that a model has seen, so that each new token costs the arithmetic of one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hotloop.models.shape import DecoderShape


class KeyValueCache:
    """Those of all layers for a batch of rows; `room` tokens of memory a row, taken at once.

    A token's stand at its position in its own row: rows of different lengths need no shifting.
    """

    def __init__(
        self, shape: DecoderShape, *, rows: Sequence[int], room: int, like: Tensor
    ) -> None:
        """`rows` names the rows; dtype and device are those of `like`."""
        heads = shape.kv_heads or shape.heads
        self.rows = list(rows)
        # Zeros: what no query sees yet is given the weight 0, and 0 times NaN is NaN.
        self._kept = like.new_zeros(shape.layers, 2, len(rows), room, heads, shape.head_width)
        self._length = 0
        self._places = like.new_zeros(len(rows), 0, dtype=torch.long)

    @staticmethod
    def row_bytes(shape: DecoderShape, room: int) -> int:
        """Bytes of a row in fp32."""
        return 2 * 4 * shape.layers * room * shape.kv_width

    def keep(self, rows: Sequence[int]) -> None:
        """Let go of all but `rows`."""
        if self.rows != list(rows):
            self._kept = self._kept[:, :, [self.rows.index(row) for row in rows]]
            self.rows = list(rows)

    def reach(self, places: Tensor, length: int) -> None:
        """Of the next call: the positions (B, T) of its tokens, and the tokens that the longest row then has."""
        self._places, self._length = places, length

    def visible(self) -> Tensor:
        """bool (B, 1, T, length): True where a query may see the key, which is not behind it."""
        keys = torch.arange(self._length, device=self._places.device)
        return keys <= self._places[:, None, :, None]

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep keys and values (B, heads, T, head_width); returns all that the layer has by now."""
        rows = torch.arange(len(k), device=k.device).unsqueeze(1)
        both = self._kept[layer]
        both[0][rows, self._places] = k.transpose(1, 2)
        both[1][rows, self._places] = v.transpose(1, 2)
        keys, values = both[:, :, : self._length].transpose(2, 3)
        return keys, values
