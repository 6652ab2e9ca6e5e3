"""An index of pieces in groups, made once and memory-mapped: the rows of a packing, the length buckets.

It lies in the cache, named by everything it depends on. Twelve bytes a piece, whatever the corpus.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
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
Part = tuple[np.ndarray, np.ndarray, np.ndarray]
"""First tokens and slots of more pieces, and the sizes of the groups that end with them (int64 each)."""
_NOTHING = np.empty(0, np.int64)
_TYPES: dict[str, np.dtype[Any]] = {
    "begins": np.dtype("<u8"),
    "starts": np.dtype("<u8"),
    "slots": np.dtype("<u4"),
}


@dataclass(frozen=True, slots=True)
class _Stored:
    """index.json, written last."""

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

    @property
    def num_groups(self) -> int:
        return len(self.begins) - 1


def packed_index(
    stream: TokenStream, context: int, *, content: str, progress: Progress = silent
) -> PieceIndex:
    """Rows of at most `context` slots, best-fit over blocks of documents. `content` names the text."""

    def parts() -> Iterator[Part]:
        for starts, slots, done in _blocks(stream, context):
            rows = best_fit(slots, context)
            order = np.argsort(rows, kind="stable")
            yield starts[order], slots[order], np.bincount(rows)
            progress("packing documents", done, len(stream), "tokens")

    return _kept([content, stream.split, "packed", context, _BLOCK], parts())


def bucket_index(
    stream: TokenStream, widths: tuple[int, ...], *, content: str, progress: Progress = silent
) -> PieceIndex:
    """Group j holds the pieces that fit into `widths[j]` and into no narrower width."""

    def parts() -> Iterator[Part]:
        for bucket, width in enumerate(widths):
            above = widths[bucket - 1] if bucket else 0
            count = 0
            for starts, slots, _ in _blocks(stream, widths[-1]):
                chosen = (slots > above) & (slots <= width)
                yield starts[chosen], slots[chosen], _NOTHING
                count += int(chosen.sum())
            yield _NOTHING, _NOTHING, np.array([count])
            progress("sorting documents by length", bucket + 1, len(widths), "buckets")

    return _kept([content, stream.split, "buckets", *widths], parts())


def _blocks(stream: TokenStream, context: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """First tokens and slots of the pieces of each block of documents, and tokens up to its end."""
    for shard in range(stream.num_shards):
        begin, ends = stream.documents_of_shard(shard)
        previous = 0
        for first in range(0, len(ends), _BLOCK):
            block = ends[first : first + _BLOCK]
            starts, slots = pieces_of(block, previous, context)
            previous = int(block[-1])
            yield starts + begin, slots, begin + previous


def _kept(depends_on: list[object], parts: Iterator[Part]) -> PieceIndex:
    """The index from the cache, made now if it is not there or damaged."""
    digest = hashlib.sha256(json.dumps([_SCHEMA, *depends_on]).encode()).hexdigest()[:16]
    directory = cache_directory() / "pieces" / digest
    entry_in_use(directory)  # before it is looked at: nobody takes it away now
    found = _open(directory)
    if found is None:
        _make(directory, parts)
        found = _open(directory)
        make_room()
    if found is None:
        raise UsageError(
            "an index of documents is damaged as soon as it is written", where=str(directory)
        )
    return found


def _make(directory: Path, parts: Iterator[Part]) -> None:
    temporary: Path | None = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        write_json(temporary / "index.json", _written(temporary, parts))
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


def _written(directory: Path, parts: Iterator[Part]) -> _Stored:
    hashes = {name: hashlib.sha256() for name in _TYPES}
    grouped = 0
    with ExitStack() as closing:
        files = {name: closing.enter_context((directory / name).open("wb")) for name in _TYPES}

        def write(name: str, values: np.ndarray) -> None:
            content = values.astype(_TYPES[name]).tobytes()
            files[name].write(content)
            hashes[name].update(content)

        write("begins", np.zeros(1, np.int64))
        for starts, slots, sizes in parts:
            write("starts", starts)
            write("slots", slots)
            write("begins", grouped + np.cumsum(sizes))
            grouped += int(sizes.sum())
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    return _Stored({name: found.hexdigest() for name, found in hashes.items()})


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
    return PieceIndex(arrays["begins"], arrays["starts"], arrays["slots"])
