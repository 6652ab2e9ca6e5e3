"""The tokens of one split: memory-mapped shards, read as if they were one long array."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_long, c_size_t, c_void_p
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.manifest import Shard
from hotloop.data.shards import DOCUMENT_ENDS


class ShardFile:
    """A shard on the disk, mapped at the first use: opening a corpus of thousands costs nothing.

    `ids` (tokens,) is uint16 or uint32; `document_ends` (documents,) uint64, ascending to the number of tokens.
    """

    def __init__(self, shard: Shard, directory: Path, dtype: np.dtype[Any]) -> None:
        """Raises `OSError` for a missing file."""
        self.file, self._documents = (str(directory / name) for name in shard.files)
        self.num_tokens = shard.tokens
        self._dtype = dtype
        self._identities = {name: _identity_of(name) for name in (self.file, self._documents)}

    @cached_property
    def ids(self) -> np.ndarray:
        return self._map(self.file, self._dtype)

    @cached_property
    def document_ends(self) -> np.ndarray:
        return self._map(self._documents, DOCUMENT_ENDS)

    def mapped(self) -> ShardFile:
        """Itself, mapped now: its files may be moved. Raises `UsageError`."""
        _ = self.ids, self.document_ends
        return self

    def _map(self, name: str, dtype: np.dtype[Any]) -> np.ndarray:
        try:
            mapped = map_file(name, dtype)
            same = _identity_of(name) == self._identities[name]
        except OSError as error:
            raise UsageError(f"cannot read shard: {error.strerror}", where=name) from error
        if not same:
            raise UsageError(
                "the prepared directory was written again while it was in use",
                where=name,
                do="run the same command again",
            )
        return mapped


def _identity_of(path: str) -> tuple[int, int, int]:
    """Tells a file from another one put in its place. Raises `OSError`."""
    status = Path(path).stat()
    return (status.st_ino, status.st_size, status.st_mtime_ns)


class TokenStream:
    """All tokens of a split, in order. `where` names the directory in errors."""

    def __init__(
        self, shards: Sequence[ShardFile], *, vocabulary_size: int, split: str, where: str
    ) -> None:
        self._shards = tuple(shards)
        # begins[k] is the first token of shard k; the last entry is the length of the stream.
        self._begins = np.cumsum([0, *(shard.num_tokens for shard in shards)], dtype=np.int64)
        self._length = int(self._begins[-1])
        self.vocabulary_size = vocabulary_size
        self.split = split
        self.where = where

    def __len__(self) -> int:
        """Tokens, the ends of documents included."""
        return self._length

    def extended(self, shards: Sequence[ShardFile]) -> TokenStream:
        """The same stream with more shards at its end."""
        return TokenStream(
            (*self._shards, *shards),
            vocabulary_size=self.vocabulary_size,
            split=self.split,
            where=self.where,
        )

    def read(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Runs of `length` tokens from `starts` (n,), (n, length) as narrow as in the shards.

        Newly allocated. Runs may cross shards. Raises `IndexError` for one outside the stream
        and `UsageError`, naming the shard, for an id outside the vocabulary.
        """
        if int(starts.min()) < 0 or int(starts.max()) + length > self._length:
            raise IndexError(f"a run of {length} lies outside the {self._length} tokens")
        if len(self._shards) == 1:
            out: np.ndarray = _runs(self._shards[0].ids, length)[starts]
        else:
            out = self._read_shards(starts, length)
        self._check_ids(out, starts)
        return out

    def _read_shards(self, starts: np.ndarray, length: int) -> np.ndarray:
        first = np.searchsorted(self._begins, starts, side="right") - 1
        last = np.searchsorted(self._begins, starts + length - 1, side="right") - 1
        out = np.empty((len(starts), length), dtype=self._shards[int(first[0])].ids.dtype)
        whole = first == last
        for index in np.unique(first[whole]).tolist():
            rows = np.flatnonzero(whole & (first == index))
            out[rows] = _runs(self._shards[index].ids, length)[starts[rows] - self._begins[index]]
        for row in np.flatnonzero(~whole).tolist():
            at, filled = int(starts[row]), 0
            for index in range(int(first[row]), int(last[row]) + 1):
                local = at + filled - int(self._begins[index])
                part = self._shards[index].ids[local : local + length - filled]
                out[row, filled : filled + len(part)] = part
                filled += len(part)
        return out

    def gather(self, at: np.ndarray) -> np.ndarray:
        """The ids (n,) at places `at` (n,), int64 and inside the stream; fast where they come in runs.

        Raises `UsageError`, naming the shard, for an id outside the vocabulary.
        """
        shards = np.searchsorted(self._begins, at, side="right") - 1
        edges = np.flatnonzero(np.diff(shards)) + 1
        parts = []
        for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(at)]):
            index = int(shards[begin])
            parts.append(self._shards[index].ids[at[begin:end] - self._begins[index]])
        out = np.concatenate(parts)
        self._check_ids(out[:, None], at)
        return out

    def slices(self, starts: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
        """Views of runs that lie in one shard each. Raises `UsageError` as `gather` does."""
        shards = np.searchsorted(self._begins, starts, side="right") - 1
        locals_ = starts - self._begins[shards]
        found = []
        for shard, begin, length in zip(shards.tolist(), locals_.tolist(), lengths.tolist()):
            ids = self._shards[shard].ids[begin : begin + length]
            if ids.max() >= self.vocabulary_size:
                self._check_ids(ids[None], self._begins[shard : shard + 1] + begin)
            found.append(ids)
        return found

    def document_blocks(self, most: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """First token of a shard, the end before, and the ends (int64) of up to `most` of its documents,
        both counted from there."""
        for begin, shard in zip(self._begins.tolist(), self._shards):
            previous = 0
            for first in range(0, len(shard.document_ends), most):
                ends = shard.document_ends[first : first + most].astype(np.int64)
                yield begin, previous, ends
                previous = int(ends[-1])

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

    def _check_ids(self, ids: np.ndarray, starts: np.ndarray) -> None:
        """Raises `UsageError` for an id outside the vocabulary in runs (n, length) from `starts` (n,) on."""
        if ids.max() < self.vocabulary_size:
            return
        row, column = np.argwhere(ids >= self.vocabulary_size)[0].tolist()
        at = int(starts[row]) + column
        index = int(np.searchsorted(self._begins, at, side="right")) - 1
        raise UsageError(
            f"altered shard: id {ids[row, column]} at token {at - int(self._begins[index])}, "
            f"but the tokenizer has {self.vocabulary_size} ids",
            where=self._shards[index].file,
            do="run `hotloop prepare` again",
        )


def _runs(ids: np.ndarray, length: int) -> np.ndarray:
    """Every run of `length` in a shard, as a view; `sliding_window_view` takes longer than a batch."""
    shape = (len(ids) - length + 1, length)
    return np.ndarray(shape, ids.dtype, ids.data, strides=ids.strides * 2)


_FAILED = c_void_p(-1).value


class _Map:
    """One read-only map of a whole file, given back with the last array that looks into it."""

    def __init__(self, address: int, size: int, dtype: np.dtype[Any]) -> None:
        self._address = address
        self._size = size
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (size // dtype.itemsize,),
            "typestr": dtype.str,
            "version": 3,
        }

    def __del__(self) -> None:
        if _libc is not None:  # None while the interpreter ends, which unmaps all
            _libc.munmap(self._address, self._size)


def map_file(path: Path | str, dtype: np.dtype[Any]) -> np.ndarray:
    """The content of a file as an array that cannot be written. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return np.empty(0, dtype)
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
    return np.asarray(_Map(address, size, dtype))


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.munmap.restype = c_void_p, c_int
    libc.mmap.argtypes = (c_void_p, c_size_t, c_int, c_int, c_int, c_long)
    libc.munmap.argtypes = (c_void_p, c_size_t)
    return libc


_libc = _load_libc()
