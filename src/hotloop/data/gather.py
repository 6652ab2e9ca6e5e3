"""Documents of a job in batches for an engine, hashed once as they pass; long ones in pieces that encode alone to the
ids they have together.

A cut is proven where it is made: with the reference, the text around it gives the same ids whole
and in two halves, for several widths of text around it. Nothing but the neighbourhood of the cut is held.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hotloop.core.errors import UsageError
from hotloop.data.sources.read import read_unit
from hotloop.data.sources.unit import ReadOptions, Report, Unit

WIDTHS = (1021, 512, 251)
"""Characters on each side of a cut that is tried."""
SEARCHED = 64 << 10
"""Characters in which a cut is looked for."""
TRIES = 200
LEAST_PIECE = 256 << 10
"""Characters below which it is not worth while to look for a cut."""
LONGEST_PIECE = 64 << 20
"""Characters held at most while no cut is found."""

Encode = Callable[[str], list[int]]

# Most likely first: a line that begins with a word, a space between words, the end of a sentence in
# a script without spaces, anything.
_CANDIDATES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<=\S\n)(?=[^\W\d_])",
        r"(?<=\w)(?= \w)",
        r"(?<=[。！？，、；.,;])(?=\w)",
        r"",
    )
)


class Pieces:
    """Takes the parts of one document and gives pieces of it."""

    def __init__(self, encode: Encode, origin: str, wanted: int) -> None:
        """Pieces of about `wanted` characters, where they can be cut there."""
        self._encode = encode
        self._origin = origin
        self._wanted = max(wanted, LEAST_PIECE)
        self._held = ""

    def take(self, text: str) -> Iterator[tuple[str, bool]]:
        """Pieces that can be encoded now that `text` has come, none of them the document's last.

        Raises `UsageError` if none ends.
        """
        self._held += text
        yield from self._whole_pieces()
        cut = last_cut(self._held, self._encode)
        if cut is not None:
            piece, self._held = self._held[:cut], self._held[cut:]
            yield piece, False
        elif len(self._held) > LONGEST_PIECE:
            raise UsageError(
                f"the tokenizer cannot encode this document in pieces: no cut in {SEARCHED} "
                "characters leaves the ids as they are",
                where=self._origin,
                do="cut the document into shorter ones, or choose another tokenizer",
            )

    def finish(self, text: str) -> Iterator[tuple[str, bool]]:
        """The pieces that are left, given the last part; the last of them marked as such."""
        self._held += text
        yield from self._whole_pieces()
        held, self._held = self._held, ""
        yield held, True

    def _whole_pieces(self) -> Iterator[tuple[str, bool]]:
        """Pieces of the wanted size from the beginning of what is held, while there is more."""
        begin = 0
        while len(self._held) - begin > self._wanted + self._wanted // 2:
            cut = last_cut(self._held[begin : begin + self._wanted], self._encode)
            if cut is None:
                break
            yield self._held[begin : begin + cut], False
            begin += cut
        self._held = self._held[begin:]


def last_cut(text: str, encode: Encode) -> int | None:
    """The last place where `text` may be cut, found in its last `SEARCHED` characters."""
    high = len(text) - WIDTHS[0]
    low = max(high - SEARCHED, WIDTHS[0])
    if high <= low:
        return None
    for pattern in _CANDIDATES:
        places = [match.start() for match in pattern.finditer(text, low, high)]
        for place in places[: -TRIES // len(_CANDIDATES) : -1]:
            if is_cut(text, place, encode):
                return place
    return None


def is_cut(text: str, place: int, encode: Encode) -> bool:
    """True when the text around `place` has the same ids whole and in two halves."""
    for width in WIDTHS:
        left, right = text[max(place - width, 0) : place], text[place : place + width]
        if encode(left + right) != encode(left) + encode(right):
            return False
    return True


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
