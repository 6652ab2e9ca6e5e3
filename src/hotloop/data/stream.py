"""The tokens of one split: memory-mapped shards, read as if they were one long array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hotloop.core.errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class MappedShard:
    """One shard, mapped."""

    file: str
    """Its path, for errors."""
    ids: np.ndarray
    """(tokens,) little-endian uint16 or uint32."""
    document_ends: np.ndarray
    """(documents,) uint64, ascending; the last is the number of tokens."""


class TokenStream:
    """All tokens of a split, in order. `where` names the directory in errors."""

    def __init__(
        self, shards: Sequence[MappedShard], *, vocabulary_size: int, split: str, where: str
    ) -> None:
        self._shards = tuple(shards)
        # begins[k] is the first token of shard k; the last entry is the length of the stream.
        self._begins = np.cumsum([0, *(len(shard.ids) for shard in shards)], dtype=np.int64)
        self._windows: list[dict[int, np.ndarray]] = [{} for _ in shards]
        self._length = int(self._begins[-1])
        self.vocabulary_size = vocabulary_size
        self.split = split
        self.where = where

    def __len__(self) -> int:
        """Tokens, the ends of documents included."""
        return self._length

    def read(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Windows of `length` tokens from `starts` (n,): int64 (n, length), newly allocated.

        Windows may cross shards. Raises `IndexError` for a window outside the stream and
        `UsageError`, naming the shard, for an id outside the vocabulary.
        """
        starts = np.asarray(starts, dtype=np.int64)
        out = np.empty((len(starts), length), dtype=np.int64)
        if not out.size:
            return out
        if int(starts.min()) < 0 or int(starts.max()) + length > self._length:
            raise IndexError(f"a window of {length} lies outside the {self._length} tokens")
        if len(self._shards) == 1:
            out[:] = self._view(0, length)[starts]
        else:
            self._read_shards(starts, length, out)
        if int(out.max()) >= self.vocabulary_size:
            self._refuse_id(starts, out)
        return out

    def _read_shards(self, starts: np.ndarray, length: int, out: np.ndarray) -> None:
        first = np.searchsorted(self._begins, starts, side="right") - 1
        last = np.searchsorted(self._begins, starts + length - 1, side="right") - 1
        whole = first == last
        for index in np.unique(first[whole]).tolist():
            rows = np.flatnonzero(whole & (first == index))
            out[rows] = self._view(index, length)[starts[rows] - self._begins[index]]
        for row in np.flatnonzero(~whole).tolist():
            at, filled = int(starts[row]), 0
            for index in range(int(first[row]), int(last[row]) + 1):
                local = at + filled - int(self._begins[index])
                part = self._shards[index].ids[local : local + length - filled]
                out[row, filled : filled + len(part)] = part
                filled += len(part)

    def _view(self, index: int, length: int) -> np.ndarray:
        """Every window of a shard, as a view; kept because making one costs more than a batch."""
        views = self._windows[index]
        if length not in views:
            if len(views) >= 8:
                views.clear()
            views[length] = sliding_window_view(self._shards[index].ids, length)
        return views[length]

    def document_starts(self, starts: np.ndarray, length: int) -> np.ndarray:
        """bool (n, length): True at tokens that are the first of a document."""
        out = np.zeros((len(starts), length), dtype=np.bool_)
        for row, start in enumerate(np.asarray(starts).tolist()):
            index = int(np.searchsorted(self._begins, start, side="right")) - 1
            while (
                index < len(self._shards) and (begin := int(self._begins[index])) < start + length
            ):
                if begin >= start:
                    out[row, begin - start] = True
                ends = self._shards[index].document_ends
                low, high = np.searchsorted(
                    ends, np.array([start - begin, start + length - begin]).clip(0).astype("u8")
                )
                # The last end is the start of the next shard, which marks it itself.
                inside = ends[low : min(int(high), len(ends) - 1)].astype(np.int64)
                out[row, inside + (begin - start)] = True
                index += 1
        return out

    def _refuse_id(self, starts: np.ndarray, out: np.ndarray) -> None:
        row, column = np.argwhere(out >= self.vocabulary_size)[0].tolist()
        at = int(starts[row]) + column
        index = int(np.searchsorted(self._begins, at, side="right")) - 1
        raise UsageError(
            f"altered shard: id {int(out[row, column])} at token {at - int(self._begins[index])}, "
            f"but the tokenizer has {self.vocabulary_size} ids",
            where=self._shards[index].file,
            do="run `hotloop prepare` again",
        )
