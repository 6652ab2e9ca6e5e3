"""Batches of rows at any position of the training order, without state: resuming is asking again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.order import EpochOrder, Order
from hotloop.data.stream import TokenStream

IGNORED_TARGET = -100
"""A target that takes no part in the loss: what fills a row up, and the start of another document."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B sequences of T tokens. The arrays belong to whoever asked for the batch."""

    tokens: np.ndarray
    """int64 (B, T), contiguous."""
    targets: np.ndarray
    """int64 (B, T), contiguous: the token after each token, or `IGNORED_TARGET`."""
    num_targets: int
    """Targets that count in the loss."""
    document_starts: np.ndarray | None = None
    """bool (B, T): the first tokens of documents. `None` without document masks."""


class Rows(Protocol):
    """A split, cut into rows. All methods are pure."""

    @property
    def num_rows(self) -> int: ...

    @property
    def stream(self) -> TokenStream: ...

    def read(self, rows: np.ndarray) -> Batch:
        """The rows with these numbers (int64), each with at least one target."""

    def count_targets(self, rows: np.ndarray) -> int:
        """The `num_targets` of `read`, without reading tokens."""


def check_length(num_tokens: int, context: int, *, split: str, where: str) -> None:
    """Raises `UsageError` for text that is shorter than one sequence."""
    if num_tokens <= context:
        raise UsageError(
            f"the {split} text holds {num_tokens} tokens, and one sequence of {context} needs {context + 1}",
            where=where,
            do="give more text, or lower `model.context`",
        )


class PlainRows:
    """Documents in a row, cut every `context` tokens.

    Row w holds tokens `w * context` to `(w + 1) * context` of the stream, so neighbours share one token
    and every token but the first is a target once, up to the end of the last whole row: the up to
    `context - 1` tokens after it are in no row.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        context: int,
        within_documents: bool = False,
    ) -> None:
        """`within_documents` gives the starts of documents, and ignores their first tokens as targets: what
        stands before them does not predict them. Raises `UsageError` for a stream shorter than one row.
        """
        self.stream = stream
        self.num_rows = max(len(stream) - 1, 0) // context
        self._context = context
        self._within = within_documents
        check_length(len(stream), context, split=stream.split, where=stream.where)

    def read(self, rows: np.ndarray) -> Batch:
        starts = rows * self._context
        ids = self.stream.read(starts, self._context + 1)
        # Widened here, straight into the arrays that are handed out: embeddings and the loss want int64.
        tokens, targets = ids[:, :-1].astype(np.int64), ids[:, 1:].astype(np.int64)
        if not self._within:
            return Batch(tokens, targets, targets.size)
        firsts = self.stream.document_starts(starts, self._context)
        ignored = self._ignored(starts)
        targets[ignored] = IGNORED_TARGET
        return Batch(tokens, targets, targets.size - int(ignored.sum()), firsts)

    def count_targets(self, rows: np.ndarray) -> int:
        total = len(rows) * self._context
        if self._within:
            total -= int(self._ignored(rows * self._context).sum())
        return total

    def _ignored(self, starts: np.ndarray) -> np.ndarray:
        """bool (n, context): targets that are the first token of a document.

        None of a row that would have no target left: it lies in empty documents alone.
        """
        ignored = self.stream.document_starts(starts + 1, self._context)
        ignored[ignored.all(axis=1)] = False
        return ignored


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
