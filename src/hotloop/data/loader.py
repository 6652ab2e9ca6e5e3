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
    """What training reads from. All methods are pure functions of their arguments."""

    @property
    def num_windows(self) -> int:
        """Windows in one epoch."""

    @property
    def unit(self) -> int:
        """Batches begin at multiples of this many windows and hold a multiple of them."""

    @property
    def uniform(self) -> bool:
        """Whether every window has as many targets as it has tokens."""

    def batch(self, position: int, num_windows: int) -> Batch:
        """The `num_windows` windows from `position` on. Raises `UsageError` for too small a corpus."""

    def count_targets(self, position: int, num_windows: int) -> int:
        """`num_targets` of that batch, without reading its tokens."""


class Loader:
    """The rows of one corpus in order.

    Position p is the `p % num_windows`-th window of epoch `p // num_windows`. The rows are the plain
    ones of `PlainRows` unless others are given.
    """

    unit = 1

    def __init__(
        self,
        stream: TokenStream,
        *,
        context: int,
        order: Order,
        seed: int,
        with_documents: bool = False,
        rows: Rows | None = None,
    ) -> None:
        """Raises `UsageError` for a stream shorter than one window."""
        self.rows = rows or PlainRows(stream, context=context, with_documents=with_documents)
        self.uniform = rows is None
        self.num_windows = self.rows.num_rows
        """Windows in one epoch."""
        self._stream = stream
        self._context = context
        self._order = order
        self._items = EpochOrder(self.num_windows, order, seed)

    def batch(self, position: int, num_windows: int) -> Batch:
        """The `num_windows` windows from `position` on. Raises `UsageError` for too small a corpus."""
        read = self.rows.read(self.indices(position, num_windows))
        return Batch(
            tokens=read.tokens,
            targets=read.targets,
            num_targets=read.num_targets,
            position=position + num_windows,
            document_starts=read.document_starts,
        )

    def count_targets(self, position: int, num_windows: int) -> int:
        """`num_targets` of that batch, without reading its tokens."""
        if self.uniform:
            return num_windows * self._context
        return self.rows.count_targets(self.indices(position, num_windows))

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
        return self._items.run(position, num_windows)

    def indices_at(self, positions: np.ndarray) -> np.ndarray:
        """int64 (n,): the windows at any positions. Meant for many at once."""
        return self._items.at(positions)
