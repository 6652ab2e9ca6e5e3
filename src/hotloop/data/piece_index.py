"""An index of pieces in groups, made once and memory-mapped: the rows of a packing, the length buckets.

It lies in the cache, named by everything it depends on. Twelve bytes a piece, whatever the corpus.

Before it is made, estimates of the filler in each layout of rows, from the lengths of all documents: padding and
buckets are counted, but for the last batch of a bucket; packing is tried on a sample, and how many documents
concatenation cuts is what to expect of their lengths.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.cache import cache_directory, entry_in_use, make_room
from hotloop.core.errors import UsageError
from hotloop.core.files import fsync_directory, read_json, storage_error, write_json
from hotloop.core.progress import Progress, silent
from hotloop.data.shards import HashedFile, make_durable
from hotloop.data.stream import TokenStream, map_file

_SCHEMA = "hotloop.pieces/1"
_INDEX = "index.json"
"""Written last."""
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
    for begin, previous, ends in stream.document_blocks(_BLOCK):
        starts, slots = pieces_of(ends, previous, context)
        yield starts + begin, slots, begin + int(ends[-1])


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
        write_json(temporary / _INDEX, {"schema": _SCHEMA, "sha256": _written(temporary, parts)})
        try:
            temporary.rename(directory)
        except OSError:
            if _open(directory) is None:  # else another process was faster: it may be reading it
                shutil.rmtree(directory, ignore_errors=True)
                temporary.rename(directory)
        fsync_directory(directory.parent)
    except OSError as error:
        raise storage_error(error, directory, "write an index of documents") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _written(directory: Path, parts: Iterator[Part]) -> dict[str, str]:
    """Write the arrays; the sha256 of each."""
    files = {name: HashedFile(directory, name) for name in _TYPES}

    def write(name: str, values: np.ndarray) -> None:
        files[name].write(values.astype(_TYPES[name]))

    write("begins", np.zeros(1, np.int64))
    grouped = 0
    for starts, slots, sizes in parts:
        write("starts", starts)
        write("slots", slots)
        write("begins", grouped + np.cumsum(sizes))
        grouped += int(sizes.sum())
    hashes = {name: file.finish() for name, file in files.items()}
    make_durable(_TYPES, directory)
    return hashes


def _open(directory: Path) -> PieceIndex | None:
    """`None` where it is missing, or not what was written."""
    try:
        sha256 = read_json(directory / _INDEX, dict)["sha256"]
        arrays = {name: map_file(directory / name, dtype) for name, dtype in _TYPES.items()}
        same = all(
            hashlib.sha256(array.data).hexdigest() == sha256[name] for name, array in arrays.items()
        )
    except (OSError, UsageError, LookupError, TypeError):
        return None
    return PieceIndex(**arrays) if same else None


def pieces_of(ends: np.ndarray, previous_end: int, context: int) -> tuple[np.ndarray, np.ndarray]:
    """First token and slots (int64 each) of the pieces of documents in a row, in order.

    `ends` (uint64) and `previous_end` are tokens of the shard. A document of n tokens has n - 1 targets
    and takes as many slots. A longer one than a row is cut where rows end; the pieces share one token,
    so that no target is lost. One without a target has no piece.
    """
    ends = ends.astype(np.int64)
    starts = np.concatenate((np.array([previous_end], np.int64), ends[:-1]))
    slots = ends - starts - 1
    counts = -(-slots // context)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    offset = (np.arange(int(counts.sum()), dtype=np.int64) - first) * context
    return np.repeat(starts, counts) + offset, np.minimum(
        np.repeat(slots, counts) - offset, context
    )


def best_fit(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """The row (int64, from 0) of each item: best-fit decreasing.

    The largest item first, each into the fullest row that still has room. Rows are numbered by the
    first item (not the largest) that they hold.
    """
    row_of = [0] * len(sizes)
    by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0  # bit r: some row has r slots left
    num_rows = 0
    order = np.argsort(-sizes, kind="stable")
    for item, size in zip(order.tolist(), sizes[order].tolist()):
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            row, room = num_rows, capacity
            num_rows += 1
        row_of[item] = row
        left = room - size
        if left:
            by_room[left].append(row)
            rooms |= 1 << left
    found = np.array(row_of, dtype=np.int64)
    firsts = np.full(num_rows, len(sizes), dtype=np.int64)
    np.minimum.at(firsts, found, np.arange(len(sizes)))
    renumbered = np.empty(num_rows, dtype=np.int64)
    renumbered[np.argsort(firsts)] = np.arange(num_rows)
    return renumbered[found]


def bucket_widths(context: int) -> tuple[int, ...]:
    """Row widths of the length buckets, ascending, at most six: every width is a shape to compile."""
    eighth = -(-context // 8)
    return tuple(sorted({min(eighth * n, context) for n in (1, 2, 3, 4, 6, 8)}))


_AT_ONCE = 1 << 20
"""Documents looked at together: bounds the memory."""
_SIMULATED = 4096
"""Documents packed to see what packing leaves over."""


@dataclass(frozen=True, slots=True)
class LayoutEstimate:
    """Fractions of all slots that hold filler, but for the last two."""

    pad_waste: float
    """One document to a row."""
    bucket_waste: float
    pack_waste: float
    cut_documents: float
    """Fraction of documents that plain concatenation cuts, though they are no longer than a row."""
    long_tokens: float
    """Fraction of tokens in documents longer than a row, which every layout cuts."""

    def recommended(self) -> tuple[str, str]:
        """A value of `data.layout`, and why."""
        if self.cut_documents < 0.05:
            return "concatenate", "hardly a document that fits a row is cut, and no slot is lost"
        if self.long_tokens > 0.9:
            return "concatenate", "nearly all tokens are in documents that every layout cuts"
        if self.pack_waste <= self.bucket_waste + 0.02:
            return "pack", "whole documents side by side, with the least filler"
        return "bucket", "packing would leave more filler"


def length_counts(stream: TokenStream) -> tuple[np.ndarray, np.ndarray]:
    """int64 twice: the lengths of documents that there are, ascending, and how many have each."""
    lengths = counts = np.empty(0, np.int64)
    for _, previous, ends in stream.document_blocks(_AT_ONCE):
        found, times = np.unique(np.diff(ends, prepend=previous), return_counts=True)
        lengths, inverse = np.unique(np.concatenate((lengths, found)), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate((counts, times))).astype(np.int64)
    return lengths, counts


def estimate_layouts(
    lengths: np.ndarray, counts: np.ndarray, context: int
) -> LayoutEstimate | None:
    """For rows of `context` tokens, from `length_counts`. `None` for a corpus without a target."""
    known = lengths > 1
    slots, counts = lengths[known] - 1, counts[known]
    if not len(slots):
        return None
    full, rest = slots // context, slots % context
    total = float((slots * counts).sum())
    widths = np.array(bucket_widths(context))
    last_rows = np.where(rest > 0, widths[np.searchsorted(widths, np.maximum(rest, 1))], 0)
    long = slots > context
    return LayoutEstimate(
        pad_waste=1 - total / float(((full + (rest > 0)) * counts).sum() * context),
        bucket_waste=1 - total / float(((full * context + last_rows) * counts).sum()),
        pack_waste=_packed_waste(slots, counts, context),
        cut_documents=float((np.where(long, 0.0, (slots - 1) / context) * counts).sum())
        / int(counts.sum()),
        long_tokens=float((slots * counts)[long].sum()) / total,
    )


def layout_lines(stream: TokenStream, context: int = 1024) -> list[str]:
    """The estimate in words, for a terminal."""
    found = estimate_layouts(*length_counts(stream), context)
    if found is None:
        return []
    layout, why = found.recommended()
    return [
        f"rows of {context} would hold filler: pad {found.pad_waste:.1%}, "
        f"bucket {found.bucket_waste:.1%}, pack {found.pack_waste:.1%} (packing: estimated)",
        f"concatenated, about {found.cut_documents:.1%} of the documents are cut that would fit a row",
        f"recommended: `data.layout: {layout}`: {why}",
    ]


def _packed_waste(slots: np.ndarray, weights: np.ndarray, context: int) -> float:
    """Fraction of filler when documents drawn evenly from all lengths are packed."""
    at = (np.arange(_SIMULATED) + 0.5) / _SIMULATED * weights.sum()
    drawn = slots[np.searchsorted(np.cumsum(weights), at)]
    # A document of many rows leaves one tail, as every other: its full rows are counted, not packed.
    full = int((drawn // context).sum())
    tails = drawn % context
    tails = tails[tails > 0]
    rows = full + (int(best_fit(tails, context).max()) + 1 if len(tails) else 0)
    return 1 - float(drawn.sum()) / (rows * context)
