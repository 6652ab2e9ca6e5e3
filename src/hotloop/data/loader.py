"""Batches at any position of the training order, without state: resuming is asking again."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.batch import Batch
from hotloop.data.order import EpochOrder, Order
from hotloop.data.rows import PlainRows, Rows
from hotloop.data.stream import TokenStream


class Batches(Protocol):
    """Batches for training. All methods are pure functions of their arguments."""

    @property
    def num_windows(self) -> int:
        """Sequences in one epoch."""

    @property
    def unit(self) -> int:
        """Batches begin at multiples of this many sequences and hold a multiple of them."""

    def batch(self, position: int, num_windows: int) -> Batch:
        """The `num_windows` sequences from `position` on. Raises `UsageError` for too small a corpus."""

    def count_targets(self, position: int, num_windows: int) -> int:
        """`num_targets` of that batch, without reading its tokens."""


class RowLoader:
    """Batches of the rows that stand in an order. A subclass gives the rows and their order."""

    unit = 1

    def batch(self, position: int, num_windows: int) -> Batch:
        """The `num_windows` sequences from `position` on. Raises what `indices` raises."""
        indices = self.indices(position, num_windows)
        return self.current_rows().read(indices)

    def count_targets(self, position: int, num_windows: int) -> int:
        """`num_targets` of that batch, without reading its tokens."""
        indices = self.indices(position, num_windows)
        return self.current_rows().count_targets(indices)

    def indices(self, position: int, num_windows: int) -> np.ndarray:
        """int64 (num_windows,): the rows that stand from `position` on, across epochs."""
        raise NotImplementedError

    def current_rows(self) -> Rows:
        raise NotImplementedError


class Loader(RowLoader):
    """The rows of one corpus in order.

    Position p is the `p % num_windows`-th row of epoch `p // num_windows`. The rows are the plain
    ones of `PlainRows` unless others are given.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        context: int,
        order: Order,
        seed: int,
        rows: Rows | None = None,
    ) -> None:
        """Raises `UsageError` for a stream shorter than one sequence."""
        self.rows = rows or PlainRows(stream, context=context)
        self.num_windows = self.rows.num_rows
        """Sequences in one epoch."""
        self._stream = stream
        self._context = context
        self._items = EpochOrder(self.num_windows, order, seed)

    def current_rows(self) -> Rows:
        return self.rows

    def indices(self, position: int, num_windows: int) -> np.ndarray:
        """See `RowLoader`. Raises `UsageError` for a corpus smaller than one batch."""
        if position < 0 or num_windows <= 0:
            raise ValueError(f"no batch of {num_windows} sequences at position {position}")
        if num_windows > self.num_windows:
            raise UsageError(
                f"the {self._stream.split} text holds {self.num_windows} sequences of "
                f"{self._context} tokens, and one batch takes {num_windows}",
                where=self._stream.where,
                do="give more text, or lower `train.microbatch` or `model.context`",
            )
        return self._items.run(position, num_windows)

    def indices_at(self, positions: np.ndarray) -> np.ndarray:
        """int64 (n,): the rows at any positions. Meant for many at once."""
        return self._items.at(positions)
