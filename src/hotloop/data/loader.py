"""Batches of rows at any position of the training order, without state: resuming is asking again."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.order import AT_ONCE, EpochOrder, Order, Shares
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
    def num_sequences(self) -> int:
        """Sequences in one epoch."""

    @property
    def unit(self) -> int:
        """Batches begin at multiples of this many sequences and hold a multiple of them."""

    def batch(self, position: int, num_sequences: int) -> Batch:
        """The `num_sequences` sequences from `position` on. Raises `UsageError` for too small a corpus."""

    def count_targets(self, position: int, num_sequences: int) -> int:
        """`num_targets` of that batch, without reading its tokens."""


class RowLoader:
    """Batches of the rows that stand in an order. A subclass gives the rows and their order."""

    unit = 1

    def batch(self, position: int, num_sequences: int) -> Batch:
        """The `num_sequences` sequences from `position` on. Raises what `indices` raises."""
        indices = self.indices(position, num_sequences)
        return self.rows.read(indices)

    def count_targets(self, position: int, num_sequences: int) -> int:
        """`num_targets` of that batch, without reading its tokens."""
        indices = self.indices(position, num_sequences)
        return self.rows.count_targets(indices)

    def indices(self, position: int, num_sequences: int) -> np.ndarray:
        """int64 (num_sequences,): the rows that stand from `position` on, across epochs."""
        raise NotImplementedError

    @property
    def rows(self) -> Rows:
        raise NotImplementedError


class Loader(RowLoader):
    """The rows of one corpus in order.

    Position p is the `p % num_sequences`-th row of epoch `p // num_sequences`. The rows are the plain
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
        self._rows = rows or PlainRows(stream, context=context)
        self.num_sequences = self._rows.num_rows
        """Sequences in one epoch."""
        self._stream = stream
        self._context = context
        self._items = EpochOrder(self.num_sequences, order, seed)

    @property
    def rows(self) -> Rows:
        return self._rows

    def indices(self, position: int, num_sequences: int) -> np.ndarray:
        """See `RowLoader`. Raises `UsageError` for a corpus smaller than one batch."""
        if position < 0 or num_sequences <= 0:
            raise ValueError(f"no batch of {num_sequences} sequences at position {position}")
        if num_sequences > self.num_sequences:
            raise UsageError(
                f"the {self._stream.split} text holds {self.num_sequences} sequences of "
                f"{self._context} tokens, and one batch takes {num_sequences}",
                where=self._stream.where,
                do="give more text, or lower `train.microbatch` or `model.context`",
            )
        return self._items.run(position, num_sequences)

    def indices_at(self, positions: np.ndarray) -> np.ndarray:
        """int64 (n,): the rows at any positions. Meant for many at once."""
        return self._items.at(positions)


class Mix:
    """Sequences of several loaders in the shares of their weights. Each goes through epochs of its own."""

    unit = 1

    def __init__(self, loaders: Sequence[Loader], weights: Sequence[float], *, seed: int) -> None:
        self._loaders = tuple(loaders)
        self.shares = Shares(weights, seed=seed)
        self._block: tuple[int, np.ndarray, np.ndarray] | None = None
        self.num_sequences = min(
            int(loader.num_sequences / share) for loader, share in zip(loaders, self.shares.weights)
        )
        """Sequences after which the first corpus has been seen once, and begins again; to within a block,
        since shares are exact at the ends of blocks."""

    def batch(self, position: int, num_sequences: int) -> Batch:
        """The `num_sequences` sequences from `position` on."""
        corpora, windows = self.sources(position, num_sequences)
        tokens = targets = starts = None
        num_targets = 0
        for index in np.unique(corpora).tolist():
            chosen = np.flatnonzero(corpora == index)
            read = self._loaders[index].rows.read(windows[chosen])
            if len(chosen) == num_sequences:
                tokens, targets, starts = read.tokens, read.targets, read.document_starts
            else:
                if tokens is None or targets is None:
                    shape = (num_sequences, read.tokens.shape[1])
                    tokens, targets = np.empty(shape, np.int64), np.empty(shape, np.int64)
                    starts = None if read.document_starts is None else np.empty(shape, np.bool_)
                tokens[chosen], targets[chosen] = read.tokens, read.targets
                if starts is not None:
                    starts[chosen] = read.document_starts
            num_targets += read.num_targets
        assert tokens is not None
        assert targets is not None
        return Batch(tokens, targets, num_targets, starts)

    def count_targets(self, position: int, num_sequences: int) -> int:
        """`num_targets` of that batch, without reading its tokens."""
        corpora, windows = self.sources(position, num_sequences)
        return sum(
            self._loaders[index].rows.count_targets(windows[corpora == index])
            for index in np.unique(corpora).tolist()
        )

    def sources(self, position: int, num_sequences: int) -> tuple[np.ndarray, np.ndarray]:
        """int64 (num_sequences,) twice: the corpus of each sequence, and its number there."""
        if position < 0 or num_sequences <= 0:
            raise ValueError(f"no batch of {num_sequences} sequences at position {position}")
        corpora, windows = [], []
        while num_sequences:
            part, inside = divmod(position, AT_ONCE)
            known = self._known(part)
            corpora.append(known[0][inside : inside + num_sequences])
            windows.append(known[1][inside : inside + num_sequences])
            position += len(corpora[-1])
            num_sequences -= len(corpora[-1])
        return np.concatenate(corpora), np.concatenate(windows)

    def _known(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        kept = self._block
        if kept is not None and kept[0] == part:
            return kept[1], kept[2]
        corpora, positions = self.shares.at(part * AT_ONCE, AT_ONCE)
        windows = np.empty_like(positions)
        for index, loader in enumerate(self._loaders):
            chosen = corpora == index
            windows[chosen] = loader.indices_at(positions[chosen])
        self._block = (part, corpora, windows)
        return corpora, windows


T = TypeVar("T")


class Prefetch(Generic[T]):
    """The items of an iterator, and the exception that ended it when its turn comes. Use it as a context.

    At most `depth` of them are made and not yet taken; with 0 each is made when it is asked for.
    """

    def __init__(self, items: Iterator[T], *, depth: int) -> None:
        self._items = items
        self._made: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._closed = False
        self._thread: threading.Thread | None = None
        if depth:
            self._thread = threading.Thread(target=self._work, name="hotloop-prefetch", daemon=True)

    def __enter__(self) -> Prefetch[T]:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._room.release()
        if self._thread is not None:
            # One that waits for data which may never come is left behind: it dies with the process.
            self._thread.join(timeout=1.0)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._thread is None:
            return next(self._items)
        item, error = self._made.get()
        if error is not None:
            self._made.put((None, error))  # for whoever asks again
            raise error
        self._room.release()
        return item  # type: ignore[return-value]

    def _work(self) -> None:
        try:
            while True:
                self._room.acquire()
                if self._closed:
                    return
                self._made.put((next(self._items), None))
        except BaseException as error:  # noqa: BLE001  # carried to whoever asks
            self._made.put((None, error))
