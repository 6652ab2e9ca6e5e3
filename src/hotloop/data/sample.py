"""Samples of a corpus: what a tokenizer is trained on, and what engines are compared on."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from hotloop.core.progress import Progress
from hotloop.data.gather import digest_of, salt_of
from hotloop.data.jobs import is_large
from hotloop.data.sources.read import read_unit
from hotloop.data.sources.unit import ReadOptions, Report, Unit

SAMPLE_BYTES = 16 << 20
"""Text a tokenizer is trained on, at most."""
SAMPLE_DOCUMENT_BYTES = 1 << 20
"""The most that is taken of one document."""
SCANNED_BYTES = 256 << 20
"""Text the sample is taken from; a larger corpus is sampled by units first."""
ENGINE_SAMPLE_BYTES = 1 << 20
ENGINE_SAMPLE_UNITS = 32


@dataclass(frozen=True, slots=True)
class Sample:
    texts: tuple[str, ...]
    """Training documents, in the order they were read."""
    held_out_below: int | None
    """The split key below which documents are held out; `None` if not everything was read."""


def held_out_below(fraction: float, lowest: int, highest: int) -> int:
    """The key below which documents are held out: of those from `lowest` to `highest` at least one, not all."""
    limit = int(fraction * 2**64)
    return min(max(limit, lowest + 1), highest) if limit and highest >= 0 else 0


def training_sample(
    units: Sequence[Unit],
    reading: ReadOptions,
    *,
    seed: int,
    validation_fraction: float,
    progress: Progress,
) -> Sample:
    """The documents with the lowest keys, of those that are not held out, in bounded memory.

    Of a corpus of more than `SCANNED_BYTES`, a part of that size is looked at, in units chosen by
    their names. Raises what reading raises.
    """
    total = sum(unit.num_bytes for unit in units)
    chosen = list(units)
    if total > SCANNED_BYTES:
        chosen = _chosen(units, seed)
    salt = salt_of(seed)
    quick = is_large(total)
    lowest, highest = 2**64, -1
    sample = _Lowest(SAMPLE_BYTES)
    read = 0
    whole = total <= SCANNED_BYTES
    for unit in chosen:
        with closing(read_unit(unit, reading, Report())) as documents:  # type: ignore[type-var]
            inside = False
            for text, _, part, _ in documents:
                content = text.encode()
                read += len(content)
                digest = digest_of(content, salt, quick=quick)
                if not inside:  # of a long document, the first part stands for it
                    split_key = int.from_bytes(digest[:8], "little")
                    lowest, highest = min(lowest, split_key), max(highest, split_key)
                    sample_key = int.from_bytes(digest[8:], "little")
                    sample.offer(sample_key, split_key, text, len(content))
                inside = part
                if read >= 4 * SCANNED_BYTES:
                    break  # compressed text that turned out longer than its file
        progress("reading a sample", min(read, total), None, unit.name)
        if read >= 4 * SCANNED_BYTES:
            whole = False
            break
    below = held_out_below(validation_fraction, lowest, highest)
    return Sample(sample.texts(below), below if whole else None)


def _chosen(units: Sequence[Unit], seed: int) -> list[Unit]:
    """Units of `SCANNED_BYTES` together, by a hash of their names, in order."""

    def chance(index: int) -> bytes:
        name = f"{seed}\0{units[index].name}\0{units[index].begin}"
        return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()

    taken, size = [], 0
    for index in sorted(range(len(units)), key=chance):
        taken.append(index)
        size += units[index].num_bytes
        if size >= SCANNED_BYTES:
            break
    return [units[index] for index in sorted(taken)]


def engine_sample(units: Sequence[Unit], reading: ReadOptions) -> list[str]:
    """`ENGINE_SAMPLE_BYTES` characters of text from all over the corpus, an equal share of each chosen unit.

    The first unit is one of them: in a corpus of one document, no other begins with any. Raises what
    reading raises.
    """
    chosen = units[:: max(len(units) // ENGINE_SAMPLE_UNITS, 1)][:ENGINE_SAMPLE_UNITS]
    share = ENGINE_SAMPLE_BYTES // max(len(chosen), 1)
    texts: list[str] = []
    for unit in chosen:
        size = 0
        with closing(read_unit(unit, reading, Report())) as documents:  # type: ignore[type-var]
            for text, *_ in documents:
                texts.append(text[: max(share - size, 1)])
                size += len(text)
                if size >= share:
                    break
    return texts


class _Lowest:
    """The documents with the lowest keys that fit a bound: a sample in one pass."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._held: list[tuple[int, int, int, int, str]] = []
        self._bytes = 0
        self._offered = 0

    def offer(self, key: int, split_key: int, text: str, size: int) -> None:
        self._offered += 1
        if size > SAMPLE_DOCUMENT_BYTES:
            text = text[: SAMPLE_DOCUMENT_BYTES // 4]  # at most 4 bytes a character
            size = len(text.encode())
        heapq.heappush(self._held, (-key, self._offered, split_key, size, text))
        self._bytes += size
        while self._bytes > self._bound and len(self._held) > 1:
            self._bytes -= heapq.heappop(self._held)[3]

    def texts(self, below: int) -> tuple[str, ...]:
        """Without the held-out ones, unless there are no others."""
        held = sorted(self._held, key=lambda entry: entry[1])
        training = tuple(entry[4] for entry in held if entry[2] >= below)
        return training or tuple(entry[4] for entry in held)
