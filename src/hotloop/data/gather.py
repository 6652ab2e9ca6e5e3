"""Documents of a job in batches for an engine, hashed once as they pass."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hotloop.data.pieces import Encode, Pieces
from hotloop.data.sources.read import read_unit
from hotloop.data.sources.unit import ReadOptions, Report, Unit

BATCH_TEXTS = 1 << 15
_QUICK_BYTES = 1 << 10


@dataclass(slots=True)
class TextBatch:
    """Texts of one source, in order. All lists are of one length, except `digests`."""

    source: int
    texts: list[str] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    """The texts as UTF-8."""
    keys: list[bytes] = field(default_factory=list)
    """16 bytes for each text: the digest of its document (of the first part of a long one)."""
    unfinished: list[int] = field(default_factory=list)
    """Indices of texts whose document continues with the next text."""
    digests: list[bytes] = field(default_factory=list)
    """Digests of everything read, 16 bytes each."""
    origins: list[str] = field(default_factory=list)
    num_bytes: int = 0
    progress_bytes: int = 0
    """Bytes of the units, as they were planned."""

    def add(self, text: str, content: bytes, key: bytes, origin: str) -> None:
        self.texts.append(text)
        self.contents.append(content)
        self.keys.append(key)
        self.origins.append(origin)
        self.num_bytes += len(content)

    def pass_on(self, left: int) -> int:
        """Count the batch, or the `left` bytes of its unit where those are fewer, as progress; return the bytes counted."""
        done = min(self.num_bytes, left)
        self.progress_bytes += done
        return done


def digest_of(content: bytes, salt: bytes, *, quick: bool) -> bytes:
    """16 bytes: the first 8 decide on which side of the split a text is, the others are for samples.

    A `quick` one reads long texts with a checksum instead of a hash, at five times the speed: texts
    that then have one digest stand on one side, which is all that is asked of it.
    """
    if quick and len(content) > 2 * _QUICK_BYTES:
        checksum = (zlib.crc32(content) << 64 | len(content)).to_bytes(12, "little")
        content = b"".join((checksum, content[:_QUICK_BYTES], content[-_QUICK_BYTES:]))
    return hashlib.blake2b(content, digest_size=16, salt=salt).digest()


def salt_of(seed: int) -> bytes:
    return seed.to_bytes(16, "little")


def read_batches(
    units: Sequence[Unit],
    options: ReadOptions,
    reports: dict[int, Report],
    *,
    salt: bytes,
    quick: bool,
    batch_bytes: int,
    encode: Encode,
) -> Iterator[TextBatch]:
    """The documents of some units. `reports`, by source, are filled as they are read.

    Raises `UsageError` for what the sources refuse and for a document that cannot be cut.
    """
    batch: TextBatch | None = None
    for unit in units:
        report = reports.setdefault(unit.source, Report())
        if batch is not None and batch.source != unit.source:
            yield batch
            batch = None
        if batch is None:
            batch = TextBatch(unit.source)
        pieces: Pieces | None = None
        key = b""
        passed = 0
        for text, origin, part, known in read_unit(unit, options, report):
            content = text.encode() if known is None else known
            digest = digest_of(content, salt, quick=quick)
            batch.digests.append(digest)
            if pieces is None and not part:
                batch.add(text, content, digest, origin)
                if batch.num_bytes >= batch_bytes or len(batch.texts) >= BATCH_TEXTS:
                    passed += batch.pass_on(unit.num_bytes - passed)
                    yield batch
                    batch = TextBatch(unit.source)
                continue
            if pieces is None:
                pieces, key = Pieces(encode, origin, batch_bytes), digest
            for piece, last in pieces.take(text) if part else pieces.finish(text):
                if not last:
                    batch.unfinished.append(len(batch.texts))
                batch.add(piece, piece.encode(), key, origin)
                if batch.num_bytes >= batch_bytes:
                    passed += batch.pass_on(unit.num_bytes - passed)
                    yield batch
                    batch = TextBatch(unit.source)
            if not part:
                pieces = None
        batch.progress_bytes += unit.num_bytes - passed
    if batch is not None:
        yield batch
