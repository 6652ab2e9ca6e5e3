"""Batches of rows at any position of the training order, without state: resuming is asking again."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.order import AT_ONCE, Blocks, EpochOrder, Order, Shares
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

    num_rows: int
    stream: TokenStream
    context: int

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
        self, stream: TokenStream, *, context: int, within_documents: bool = False
    ) -> None:
        """`within_documents` gives the starts of documents, and ignores their first tokens as targets: what
        stands before them does not predict them. Raises `UsageError` for a stream shorter than one row.
        """
        self.stream = stream
        self.num_rows = max(len(stream) - 1, 0) // context
        self.context = context
        self._within = within_documents
        check_length(len(stream), context, split=stream.split, where=stream.where)

    def read(self, rows: np.ndarray) -> Batch:
        starts = rows * self.context
        ids = self.stream.read(starts, self.context + 1)
        # Widened here, straight into the arrays that are handed out: embeddings and the loss want int64.
        tokens, targets = ids[:, :-1].astype(np.int64), ids[:, 1:].astype(np.int64)
        if not self._within:
            return Batch(tokens, targets, targets.size)
        firsts = self.stream.document_starts(starts, self.context)
        ignored = self._ignored(starts)
        targets[ignored] = IGNORED_TARGET
        return Batch(tokens, targets, targets.size - int(ignored.sum()), firsts)

    def count_targets(self, rows: np.ndarray) -> int:
        total = len(rows) * self.context
        if self._within:
            total -= int(self._ignored(rows * self.context).sum())
        return total

    def _ignored(self, starts: np.ndarray) -> np.ndarray:
        """bool (n, context): targets that are the first token of a document.

        None of a row that would have no target left: it lies in empty documents alone.
        """
        ignored = self.stream.document_starts(starts + 1, self.context)
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
    """`Batches` of the rows that stand in an order. A subclass gives the rows and their order."""

    unit = 1
    rows: Rows

    def batch(self, position: int, num_sequences: int) -> Batch:
        indices = self.indices(position, num_sequences)  # which may find more rows
        return self.rows.read(indices)

    def count_targets(self, position: int, num_sequences: int) -> int:
        indices = self.indices(position, num_sequences)
        return self.rows.count_targets(indices)

    def indices(self, position: int, num_sequences: int) -> np.ndarray:
        """int64 (num_sequences,): the rows that stand from `position` on, across epochs."""
        raise NotImplementedError


class Loader(RowLoader):
    """The rows of one corpus in order: at position p the `p % num_sequences`-th of epoch `p // num_sequences`."""

    def __init__(self, rows: Rows, *, order: Order, seed: int) -> None:
        self.rows = rows
        self.num_sequences = rows.num_rows
        self.items = EpochOrder(self.num_sequences, order, seed)

    def indices(self, position: int, num_sequences: int) -> np.ndarray:
        """See `RowLoader`. Raises `UsageError` for a corpus smaller than one batch."""
        if num_sequences > self.num_sequences:
            raise UsageError(
                f"the {self.rows.stream.split} text holds {self.num_sequences} sequences of "
                f"{self.rows.context} tokens, and one batch takes {num_sequences}",
                where=self.rows.stream.where,
                do="give more text, or lower `train.microbatch` or `model.context`",
            )
        return self.items.run(position, num_sequences)


class Mix:
    """`Batches` of several loaders in the shares of their weights. Each goes through epochs of its own."""

    unit = 1

    def __init__(self, loaders: Sequence[Loader], weights: Sequence[float], *, seed: int) -> None:
        self._loaders = tuple(loaders)
        self.shares = Shares(weights, seed=seed)
        self._blocks = Blocks(AT_ONCE, self._sources)
        self.num_sequences = min(
            int(loader.num_sequences / share) for loader, share in zip(loaders, self.shares.weights)
        )
        """Sequences after which the first corpus has been seen once, and begins again; to within a block,
        since shares are exact at the ends of blocks."""

    def batch(self, position: int, num_sequences: int) -> Batch:
        corpora, rows = self.sources(position, num_sequences)
        chosen = np.unique(corpora).tolist()
        parts = [self._loaders[index].rows.read(rows[corpora == index]) for index in chosen]

        def together(arrays: list[np.ndarray]) -> np.ndarray:
            whole = np.empty((num_sequences, *arrays[0].shape[1:]), arrays[0].dtype)
            for index, array in zip(chosen, arrays):
                whole[corpora == index] = array
            return whole

        starts = [part.document_starts for part in parts if part.document_starts is not None]
        return Batch(
            together([part.tokens for part in parts]),
            together([part.targets for part in parts]),
            sum(part.num_targets for part in parts),
            together(starts) if starts else None,
        )

    def count_targets(self, position: int, num_sequences: int) -> int:
        corpora, rows = self.sources(position, num_sequences)
        return sum(
            self._loaders[index].rows.count_targets(rows[corpora == index])
            for index in np.unique(corpora).tolist()
        )

    def sources(self, position: int, num_sequences: int) -> np.ndarray:
        """int64 (2, num_sequences): the corpus of each sequence, and its row there."""
        return self._blocks.run(position, num_sequences)

    def _sources(self, block: int) -> np.ndarray:
        corpora, positions = self.shares.at(block * AT_ONCE, AT_ONCE)
        rows = np.empty_like(positions)
        for index, loader in enumerate(self._loaders):
            rows[corpora == index] = loader.items.at(positions[corpora == index])
        return np.stack((corpora, rows))


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
