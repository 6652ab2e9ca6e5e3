"""Documents of a job in batches for an engine, hashed once as they pass; long ones in pieces that encode alone to the
ids they have together. And samples of a corpus, for training a tokenizer and for comparing engines.

A cut is proven where it is made: with the reference, the text around it gives the same ids whole
and in two halves, for several widths of text around it. Nothing but the neighbourhood of the cut is held.
"""

from __future__ import annotations

import hashlib
import heapq
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress
from hotloop.data.jobs import is_large
from hotloop.data.sources import ReadOptions, Report, Unit
from hotloop.data.sources.read import read_unit

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
            found: Iterable[tuple[str, bool]] = ((text, True),)
            if pieces is None:
                key = digest
                pieces = Pieces(encode, origin, batch_bytes) if part else None
            if pieces is not None:
                found = pieces.take(text) if part else pieces.finish(text)
            for piece, last in found:
                if not last:
                    batch.unfinished.append(len(batch.texts))
                batch.add(piece, content if pieces is None else piece.encode(), key, origin)
                if batch.num_bytes >= batch_bytes or len(batch.texts) >= BATCH_TEXTS:
                    passed += batch.pass_on(unit.num_bytes - passed)
                    yield batch
                    batch = TextBatch(unit.source)
            if not part:
                pieces = None
        batch.progress_bytes += unit.num_bytes - passed
    if batch is not None:
        yield batch


SAMPLE_BYTES = 16 << 20
"""Text a tokenizer is trained on, at most."""
SAMPLE_DOCUMENT_BYTES = 1 << 20
"""The most that is taken of one document."""
SCANNED_BYTES = 256 << 20
"""Text the sample is taken from; a larger corpus is sampled by units first."""
ENGINE_SAMPLE_BYTES = 1 << 20
ENGINE_SAMPLE_UNITS = 32


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
) -> tuple[tuple[str, ...], int | None]:
    """The documents with the lowest keys, of those that are not held out, in the order and memory of one pass.

    And the split key below which documents are held out; `None` if not everything was read: of a corpus
    of more than `SCANNED_BYTES`, a part of that size is looked at, in units chosen by their names.
    Raises what reading raises.
    """
    total = sum(unit.num_bytes for unit in units)
    whole = total <= SCANNED_BYTES
    salt, quick = salt_of(seed), is_large(total)
    lowest, highest = 2**64, -1
    held: list[
        tuple[int, int, int, int, str]
    ] = []  # less sample key, bytes read, split key, bytes, text
    held_bytes = read = 0
    for unit in units if whole else _chosen(units, seed):
        with closing(read_unit(unit, reading, Report())) as documents:  # type: ignore[type-var]
            inside = False
            for text, _, part, _ in documents:
                content = text.encode()
                read += len(content)
                if not inside:  # of a long document, the first part stands for it
                    digest = digest_of(content, salt, quick=quick)
                    split_key = int.from_bytes(digest[:8], "little")
                    lowest, highest = min(lowest, split_key), max(highest, split_key)
                    size = len(content)
                    if size > SAMPLE_DOCUMENT_BYTES:
                        text = text[: SAMPLE_DOCUMENT_BYTES // 4]  # at most 4 bytes a character
                        size = len(text.encode())
                    sample_key = int.from_bytes(digest[8:], "little")
                    heapq.heappush(held, (-sample_key, read, split_key, size, text))
                    held_bytes += size
                    while held_bytes > SAMPLE_BYTES and len(held) > 1:
                        held_bytes -= heapq.heappop(held)[3]
                inside = part
                if read >= 4 * SCANNED_BYTES:
                    break  # compressed text that turned out longer than its file
        progress("reading a sample", min(read, total), None, unit.name)
        if read >= 4 * SCANNED_BYTES:
            whole = False
            break
    below = held_out_below(validation_fraction, lowest, highest)
    held.sort(key=lambda entry: entry[1])
    training = tuple(entry[4] for entry in held if entry[2] >= below)
    return training or tuple(entry[4] for entry in held), below if whole else None


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
