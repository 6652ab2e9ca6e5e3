"""The first pass over the sources: fingerprints, the split, and the tokenizer's sample."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress
from hotloop.data.manifest import SourceSummary
from hotloop.data.sources import Document, Skipped, read_documents

SAMPLE_BYTES = 16 << 20
"""Text a tokenizer is trained on, at most."""
SAMPLE_DOCUMENT_BYTES = 1 << 20
"""Of one document, at most."""
REPORT_BYTES = 1 << 20


class SourceReader:
    """The documents of one source, summarised while they pass."""

    def __init__(self, source: str, *, text_field: str, exclude: Path | None) -> None:
        self._source = source
        self._text_field = text_field
        self._exclude = exclude
        self._skipped = Skipped()
        self._hash = hashlib.sha256()
        self._documents = 0
        self._bytes = 0

    def __iter__(self) -> Iterator[tuple[Document, bytes]]:
        """Each document and its UTF-8 bytes."""
        for document in read_documents(
            self._source,
            text_field=self._text_field,
            skipped=self._skipped,
            exclude=self._exclude,
        ):
            content = document.text.encode()
            self._hash.update(len(content).to_bytes(8, "little"))
            self._hash.update(content)
            self._documents += 1
            self._bytes += len(content)
            yield document, content

    def summary(self) -> SourceSummary:
        """Of what has been read so far."""
        return SourceSummary(
            source=self._source,
            documents=self._documents,
            bytes=self._bytes,
            sha256=self._hash.hexdigest(),
            skipped=dict(sorted(self._skipped.counts.items())),
            skipped_examples=tuple(self._skipped.examples),
        )


@dataclass(frozen=True, slots=True)
class Scan:
    """What one pass over the sources found."""

    sources: tuple[SourceSummary, ...]
    bytes: int
    held_out_below: int
    """A document whose split key lies below this is held out."""
    sample: tuple[str, ...]
    """Training documents for the tokenizer, in the order they were read; empty unless asked for."""


def document_keys(content: bytes, seed: int) -> tuple[int, int]:
    """Two independent 64-bit keys of a text, for the split and for the sample."""
    salt = seed.to_bytes(16, "little")
    digest = hashlib.blake2b(content, digest_size=16, salt=salt).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def scan_sources(
    sources: Sequence[str],
    *,
    text_field: str,
    validation_fraction: float,
    seed: int,
    sample_bytes: int,
    exclude: Path | None,
    progress: Progress,
) -> Scan:
    """Read everything once, in bounded memory. Raises `UsageError` for a source without text.

    The split is by text: equal documents are on one side. Of 2 or more different documents at
    least one is held out (unless the fraction is 0) and at least one is not.
    """
    limit = int(validation_fraction * 2**64)
    lowest, highest = 2**64, -1
    summaries: list[SourceSummary] = []
    sample = _Sample(sample_bytes)
    total = reported = 0
    for source in sources:
        reader = SourceReader(source, text_field=text_field, exclude=exclude)
        for document, content in reader:
            split_key, sample_key = document_keys(content, seed)
            lowest, highest = min(lowest, split_key), max(highest, split_key)
            sample.offer(sample_key, split_key, document.text, len(content))
            total += len(content)
            if total - reported >= REPORT_BYTES:
                progress("reading", total, None, source)
                reported = total
        summary = reader.summary()
        if not summary.documents:
            skipped = sum(summary.skipped.values())
            raise UsageError(
                "the source holds no text" + (f" ({skipped} files skipped)" if skipped else ""),
                where=source,
                do="give a file or directory with UTF-8 text",
            )
        summaries.append(summary)
    held_out_below = 0
    if limit:
        held_out_below = min(max(limit, lowest + 1), highest)
    return Scan(tuple(summaries), total, held_out_below, sample.texts(held_out_below))


class _Sample:
    """The documents with the lowest keys that fit a bound: a sample in one pass."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._held: list[tuple[int, int, int, int, str]] = []
        self._bytes = 0
        self._offered = 0

    def offer(self, key: int, split_key: int, text: str, size: int) -> None:
        if not self._bound:
            return
        self._offered += 1
        if size > SAMPLE_DOCUMENT_BYTES:
            text = text[: SAMPLE_DOCUMENT_BYTES // 4]  # at most 4 bytes a character
            size = len(text.encode())
        heapq.heappush(self._held, (-key, self._offered, split_key, size, text))
        self._bytes += size
        while self._bytes > self._bound and len(self._held) > 1:
            self._bytes -= heapq.heappop(self._held)[3]

    def texts(self, held_out_below: int) -> tuple[str, ...]:
        """Without the held-out ones, unless there are no others."""
        held = sorted(self._held, key=lambda entry: entry[1])
        training = tuple(entry[4] for entry in held if entry[2] >= held_out_below)
        return training or tuple(entry[4] for entry in held)
