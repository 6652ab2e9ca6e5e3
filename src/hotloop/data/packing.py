"""Rows of whole documents, packed side by side, and batches of documents of similar length.

In buckets the batch is the unit: bucket j of width W has `budget // W` rows, and an epoch is all batches of all
buckets, permuted. All ranks know every batch from its number, so they take equally many steps, and
nobody has to be asked how many targets a step has. Every batch of a bucket has the same shape; the last
one is filled up with empty rows.
"""

from __future__ import annotations

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.loader import IGNORED_TARGET, Batch
from hotloop.data.order import EpochOrder, Order
from hotloop.data.piece_index import PieceIndex
from hotloop.data.stream import TokenStream

FILLER = 0
"""Id that fills a row up; it is never a target, and with document masks nothing sees it."""

_LONG = 48
"""Slots of a piece, on average, from which a copy of each is faster than looking up every token."""


def _no_target(stream: TokenStream) -> UsageError:
    what = f"the {stream.split} text holds no document with two tokens"
    return UsageError(what, where=stream.where, do="give more text")


class PackedRows:
    """Row w holds the pieces of group w of an index, one after another."""

    def __init__(
        self, stream: TokenStream, index: PieceIndex, *, context: int, with_documents: bool
    ) -> None:
        """Raises `UsageError` where no document of the split has two tokens: nothing could be predicted."""
        self.stream = stream
        self.num_rows = index.num_groups
        self._index = index
        self.context = context
        self._with_documents = with_documents
        if not self.num_rows:
            raise _no_target(stream)

    def read(self, rows: np.ndarray) -> Batch:
        pieces, sizes = _pieces_of_rows(self._index, rows)
        slots = self._index.slots[pieces].astype(np.int64)
        row_of = np.repeat(np.arange(len(rows)), sizes)
        # Where a piece begins in its row: slots before it, less those of the rows before.
        before = np.cumsum(slots) - slots
        first_of_row = np.cumsum(sizes) - sizes
        inside = before - before[first_of_row][row_of]
        return read_pieces(
            self.stream,
            self._index.starts[pieces].astype(np.int64),
            slots,
            row_of * self.context + inside,
            shape=(len(rows), self.context),
            with_documents=self._with_documents,
        )

    def count_targets(self, rows: np.ndarray) -> int:
        pieces, _ = _pieces_of_rows(self._index, rows)
        return int(self._index.slots[pieces].sum(dtype=np.int64))


def read_pieces(
    stream: TokenStream,
    starts: np.ndarray,
    slots: np.ndarray,
    places: np.ndarray,
    *,
    shape: tuple[int, int],
    with_documents: bool,
) -> Batch:
    """Pieces of `slots` inputs from tokens `starts`, laid out from the flat `places` on; the rest is filler."""
    total = int(slots.sum())
    tokens = np.full(shape, FILLER, dtype=np.int64)
    targets = np.full(shape, IGNORED_TARGET, dtype=np.int64)
    if total >= _LONG * len(slots):
        _copy(stream, starts, slots, places, tokens.reshape(-1), targets.reshape(-1))
    else:
        steps = np.arange(total) - np.repeat(np.cumsum(slots) - slots, slots)
        source = np.repeat(starts, slots) + steps
        target = np.repeat(places, slots) + steps
        tokens.reshape(-1)[target] = stream.gather(source)
        targets.reshape(-1)[target] = stream.gather(source + 1)
    if not with_documents:
        return Batch(tokens, targets, total)
    firsts = np.zeros(shape, dtype=np.bool_)
    firsts[:, 0] = True  # of an empty row
    flat = firsts.reshape(-1)
    flat[places] = True
    ends = places + slots
    flat[ends[ends % shape[1] != 0]] = True  # filler, or the next piece, is no part of it
    return Batch(tokens, targets, total, firsts)


def _copy(
    stream: TokenStream,
    starts: np.ndarray,
    slots: np.ndarray,
    places: np.ndarray,
    tokens: np.ndarray,
    targets: np.ndarray,
) -> None:
    """Piece by piece into the flat arrays."""
    for ids, count, place in zip(stream.slices(starts, slots + 1), slots.tolist(), places.tolist()):
        tokens[place : place + count] = ids[:-1]
        targets[place : place + count] = ids[1:]


def _pieces_of_rows(index: PieceIndex, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the pieces of these rows in a row, and how many each row has."""
    begins = index.begins[rows].astype(np.int64)
    sizes = index.begins[rows + 1].astype(np.int64) - begins
    offsets = np.repeat(begins - (np.cumsum(sizes) - sizes), sizes)
    return offsets + np.arange(int(sizes.sum())), sizes


class BucketLoader:
    """`Batches` of buckets. Positions count as if every batch had `microbatch` sequences of `context` tokens: that is its budget."""

    def __init__(
        self,
        stream: TokenStream,
        index: PieceIndex,
        widths: tuple[int, ...],
        *,
        microbatch: int,
        order: Order,
        seed: int,
    ) -> None:
        """`index` is `bucket_index` of these widths. Raises `UsageError` for a split without a target."""
        self.unit = microbatch
        self._stream = stream
        self._index = index
        self._widths = widths
        self._begins = index.begins.astype(np.int64)
        sizes = np.diff(self._begins)
        self._rows = [microbatch * widths[-1] // width for width in widths]
        batches = [-(-int(size) // rows) for size, rows in zip(sizes, self._rows)]
        self._edges = np.cumsum(batches)
        self.num_batches = int(self._edges[-1])
        if not self.num_batches:
            raise _no_target(stream)
        self.num_sequences = self.num_batches * microbatch
        self._batches = EpochOrder(self.num_batches, order, seed)
        self._pieces = [
            EpochOrder(max(int(size), 1), order, seed + bucket) for bucket, size in enumerate(sizes)
        ]

    def batch(self, position: int, num_sequences: int) -> Batch:
        """The batch at `position`. `num_sequences` is `unit`, and `position` a multiple of it."""
        if num_sequences != self.unit or position % self.unit or position < 0:
            raise ValueError(
                f"batches of {self.unit} sequences, not {num_sequences} from {position} on"
            )
        width, rows, pieces = self._chosen(position // self.unit)
        return read_pieces(
            self._stream,
            self._index.starts[pieces].astype(np.int64),
            self._index.slots[pieces].astype(np.int64),
            np.arange(len(pieces)) * width,
            shape=(rows, width),
            with_documents=False,  # one document to a row: causal attention keeps it from the filler
        )

    def count_targets(self, position: int, num_sequences: int) -> int:
        first = position // self.unit
        return sum(
            int(self._index.slots[self._chosen(first + i)[2]].sum(dtype=np.int64))
            for i in range(num_sequences // self.unit)
        )

    def widest(self) -> int:
        """The number of a batch whose rows are the longest."""
        return int(self._batches.at(np.arange(self.num_batches)).argmax())

    def _chosen(self, number: int) -> tuple[int, int, np.ndarray]:
        """Width, rows and pieces of a batch, by its number since the start of training."""
        epoch = number // self.num_batches
        at = int(self._batches.run(number, 1)[0])
        bucket = int(np.searchsorted(self._edges, at, side="right"))
        inside = at - (int(self._edges[bucket - 1]) if bucket else 0)
        size = int(self._begins[bucket + 1] - self._begins[bucket])
        rows = self._rows[bucket]
        first = inside * rows
        places = self._pieces[bucket].run(epoch * size + first, min(rows, size - first))
        return self._widths[bucket], rows, self._begins[bucket] + places
