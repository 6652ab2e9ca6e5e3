"""Rows of whole documents: packed side by side, filled up at the end."""

from __future__ import annotations

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.batch import IGNORED_TARGET, Batch
from hotloop.data.piece_index import PieceIndex
from hotloop.data.stream import TokenStream

FILLER = 0
"""Id that fills a row up; it is never a target, and with document masks nothing sees it."""

_LONG = 48
"""Slots of a piece, on average, from which a copy of each is faster than looking up every token."""


class PackedRows:
    """Row w holds the pieces of group w of an index, one after another."""

    def __init__(
        self, stream: TokenStream, index: PieceIndex, *, context: int, with_documents: bool
    ) -> None:
        """Raises `UsageError` for a split without a single target."""
        self.stream = stream
        self.num_rows = index.num_groups
        self._index = index
        self._context = context
        self._with_documents = with_documents
        if not self.num_rows:
            raise UsageError(
                f"the {stream.split} text holds no document with two tokens",
                where=stream.where,
                do="give more text",
            )

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
            row_of * self._context + inside,
            shape=(len(rows), self._context),
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
