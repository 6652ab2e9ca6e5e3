"""An index of pieces in groups, made once and memory-mapped: the rows of a packing, the length buckets.

It lies in the cache, named by everything it depends on. Twelve bytes a piece, whatever the corpus.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.cache import cache_directory
from hotloop.core.cache_entries import entry_in_use, make_room
from hotloop.core.errors import UsageError
from hotloop.core.files import fsync_directory, read_json, storage_error, write_json
from hotloop.core.progress import Progress, silent
from hotloop.data.fitting import best_fit, pieces_of
from hotloop.data.mapping import map_file
from hotloop.data.stream import TokenStream

_SCHEMA = "hotloop.pieces/1"
_BLOCK = 1 << 16
"""Documents that are packed together: bounds the memory, and what a document can be next to."""
_TYPES: dict[str, np.dtype[Any]] = {
    "begins": np.dtype("<u8"),
    "starts": np.dtype("<u8"),
    "slots": np.dtype("<u4"),
}


@dataclass(frozen=True, slots=True)
class _Stored:
    """index.json, written last."""

    groups: int
    pieces: int
    total_slots: int
    sha256: dict[str, str]
    schema: str = _SCHEMA


@dataclass(frozen=True, slots=True, eq=False)
class PieceIndex:
    """Group g holds pieces `begins[g]` to `begins[g + 1]`."""

    begins: np.ndarray
    """(groups + 1,) uint64."""
    starts: np.ndarray
    """(pieces,) uint64: first token, in the stream."""
    slots: np.ndarray
    """(pieces,) uint32: inputs, and as many targets."""
    total_slots: int

    @property
    def num_groups(self) -> int:
        return len(self.begins) - 1


def packed_index(
    stream: TokenStream, context: int, *, content: str, progress: Progress = silent
) -> PieceIndex:
    """Rows of at most `context` slots, best-fit over blocks of documents. `content` names the text."""

    def make(out: _Writer) -> None:
        for shard in range(stream.num_shards):
            begin, ends = stream.documents_of_shard(shard)
            previous = 0
            for first in range(0, len(ends), _BLOCK):
                block = ends[first : first + _BLOCK]
                starts, slots = pieces_of(block, previous, context)
                rows = best_fit(slots, context)
                order = np.argsort(rows, kind="stable")
                out.append(starts[order] + begin, slots[order], np.bincount(rows))
                previous = int(block[-1])
                progress("packing documents", begin + previous, len(stream), "tokens")

    return _kept([content, stream.split, "packed", context, _BLOCK], make)


def bucket_index(
    stream: TokenStream, widths: tuple[int, ...], *, content: str, progress: Progress = silent
) -> PieceIndex:
    """Group j holds the pieces that fit into `widths[j]` and into no narrower width."""

    def make(out: _Writer) -> None:
        for bucket, width in enumerate(widths):
            above = widths[bucket - 1] if bucket else 0
            count = 0
            for shard in range(stream.num_shards):
                begin, ends = stream.documents_of_shard(shard)
                previous = 0
                for first in range(0, len(ends), _BLOCK):
                    block = ends[first : first + _BLOCK]
                    starts, slots = pieces_of(block, previous, widths[-1])
                    chosen = (slots > above) & (slots <= width)
                    out.append(starts[chosen] + begin, slots[chosen], np.empty(0, np.int64))
                    count += int(chosen.sum())
                    previous = int(block[-1])
            out.end_group(count)
            progress("sorting documents by length", bucket + 1, len(widths), "buckets")

    return _kept([content, stream.split, "buckets", *widths], make)


class _Writer:
    def __init__(self, directory: Path) -> None:
        self._files = {name: (directory / name).open("wb") for name in _TYPES}
        self._hashes = {name: hashlib.sha256() for name in _TYPES}
        self._groups = self._pieces = self._slots = self._grouped = 0
        self._write("begins", np.zeros(1, np.int64))

    def append(self, starts: np.ndarray, slots: np.ndarray, sizes: np.ndarray) -> None:
        """More pieces, and the sizes of the groups that end with them."""
        self._write("starts", starts)
        self._write("slots", slots)
        self._pieces += len(starts)
        self._slots += int(slots.sum())
        if len(sizes):
            self._write("begins", self._grouped + np.cumsum(sizes))
            self._grouped += int(sizes.sum())
            self._groups += len(sizes)

    def end_group(self, size: int) -> None:
        self.append(np.empty(0, np.int64), np.empty(0, np.int64), np.array([size]))

    def _write(self, name: str, values: np.ndarray) -> None:
        content = values.astype(_TYPES[name]).tobytes()
        self._files[name].write(content)
        self._hashes[name].update(content)

    def finish(self) -> _Stored:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.close()
        assert self._grouped == self._pieces
        sums = {name: found.hexdigest() for name, found in self._hashes.items()}
        return _Stored(self._groups, self._pieces, self._slots, sums)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _kept(depends_on: list[object], make: Callable[[_Writer], None]) -> PieceIndex:
    """The index from the cache, made now if it is not there or damaged."""
    digest = hashlib.sha256(json.dumps([_SCHEMA, *depends_on]).encode()).hexdigest()[:16]
    directory = cache_directory() / "pieces" / digest
    entry_in_use(directory)  # before it is looked at: nobody takes it away now
    found = _open(directory)
    if found is None:
        _make(directory, make)
        found = _open(directory)
        make_room()
    if found is None:
        raise UsageError(
            "an index of documents is damaged as soon as it is written", where=str(directory)
        )
    return found


def _make(directory: Path, make: Callable[[_Writer], None]) -> None:
    temporary: Path | None = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        out = _Writer(temporary)
        try:
            make(out)
            stored = out.finish()
        finally:
            out.close()
        write_json(temporary / "index.json", stored)
        shutil.rmtree(directory, ignore_errors=True)
        try:
            temporary.rename(directory)
        except OSError:
            if _open(directory) is None:  # else another process was faster; it is the same
                raise
        fsync_directory(directory.parent)
    except OSError as error:
        raise storage_error(error, directory, "write an index of documents") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _open(directory: Path) -> PieceIndex | None:
    """`None` where it is missing, or not what was written."""
    try:
        stored = read_json(directory / "index.json", _Stored)
        arrays = {name: map_file(directory / name, dtype) for name, dtype in _TYPES.items()}
    except (OSError, UsageError):
        return None
    for name, values in arrays.items():
        if hashlib.sha256(values.data).hexdigest() != stored.sha256[name]:
            return None
    return PieceIndex(arrays["begins"], arrays["starts"], arrays["slots"], stored.total_slots)
