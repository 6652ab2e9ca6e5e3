"""Batches at any position of the training order, without state: resuming is asking again."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.batch import Batch
from hotloop.data.order import permuted
from hotloop.data.stream import TokenStream

_BLOCK = 1024
"""Positions whose order is worked out at once: one costs nearly as much as a thousand."""


class Loader:
    """Windows of `context` tokens and their targets.

    Window w holds tokens `w * context` to `(w + 1) * context` of the stream, so neighbours share
    one token and every token but the first is a target once per epoch. Position p is the
    `p % num_windows`-th window of epoch `p // num_windows`. All methods are pure.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        context: int,
        order: Literal["shuffled", "sequential"],
        seed: int,
        with_documents: bool = False,
    ) -> None:
        """Raises `UsageError` for a stream shorter than one window."""
        self._stream = stream
        self._context = context
        self._order = order
        self._seed = seed
        self._with_documents = with_documents
        self._block: tuple[tuple[int, int], np.ndarray] | None = None
        self.num_windows = max(len(stream) - 1, 0) // context
        """Windows in one epoch."""
        if not self.num_windows:
            raise UsageError(
                f"the {stream.split} text holds {len(stream)} tokens, "
                f"and one window of {context} needs {context + 1}",
                where=stream.where,
                do="give more text, or lower `model.context`",
            )

    def batch(self, position: int, num_windows: int) -> Batch:
        """The `num_windows` windows from `position` on. Raises `UsageError` for too small a corpus."""
        starts = self.indices(position, num_windows) * self._context
        windows = self._stream.read(starts, self._context + 1)
        return Batch(
            tokens=np.ascontiguousarray(windows[:, :-1]),
            targets=np.ascontiguousarray(windows[:, 1:]),
            num_targets=num_windows * self._context,
            position=position + num_windows,
            document_starts=self._stream.document_starts(starts, self._context)
            if self._with_documents
            else None,
        )

    def indices(self, position: int, num_windows: int) -> np.ndarray:
        """int64 (num_windows,): the windows that stand from `position` on, across epochs."""
        if position < 0 or num_windows <= 0:
            raise ValueError(f"no batch of {num_windows} windows at position {position}")
        if num_windows > self.num_windows:
            raise UsageError(
                f"the {self._stream.split} text holds {self.num_windows} windows of "
                f"{self._context} tokens, and one batch takes {num_windows}",
                where=self._stream.where,
                do="give more text, or lower `train.microbatch` or `model.context`",
            )
        parts = []
        while num_windows:
            epoch, at = divmod(position, self.num_windows)
            block, inside = divmod(at, _BLOCK)
            part = self._ordered(epoch, block)[inside : inside + num_windows]
            parts.append(part)
            position += len(part)
            num_windows -= len(part)
        return np.concatenate(parts)

    def _ordered(self, epoch: int, block: int) -> np.ndarray:
        """The windows at positions `block * _BLOCK` on of an epoch, at most `_BLOCK` of them."""
        kept = self._block
        if kept is not None and kept[0] == (epoch, block):
            return kept[1]
        first = block * _BLOCK
        positions = np.arange(first, min(first + _BLOCK, self.num_windows), dtype=np.int64)
        if self._order == "shuffled":
            positions = permuted(positions, self.num_windows, seed=self._seed, epoch=epoch)
        self._block = ((epoch, block), positions)
        return positions
