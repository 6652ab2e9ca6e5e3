"""What every reader of a unit shares: decoding, bad records, filters by length, and parts of long documents."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile

from hotloop.core.errors import UsageError
from hotloop.data.sources import PIECE_BYTES, Document, ReadOptions, Report, Unit

NULL = "null instead of text"
MALFORMED = "malformed record"
NO_FIELD = "record without the field"
NOT_TEXT = "field that is not text"
NOT_UTF8 = "not UTF-8"
REPLACED = "bytes that are not UTF-8 replaced by U+FFFD"

Where = Callable[[], str]


class BadRecordError(Exception):
    """A record that gives no document. `reason` is counted, `what` is shown."""

    def __init__(self, reason: str, what: str, do: str | None = None) -> None:
        super().__init__(what)
        self.reason = reason
        self.what = what
        self.do = do or "mend it, or leave such records out with --skip-bad"


def no_field(text_field: str, have: Iterable[str], what: str = "field") -> BadRecordError:
    names = sorted(have)
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    do = f"choose one with --text-field; the {what}s here: {shown or 'none'}"
    return BadRecordError(NO_FIELD, f"no {what} {text_field!r}", do)


@dataclass(frozen=True, slots=True)
class UnitReader:
    unit: Unit
    options: ReadOptions
    report: Report
    """Filled while the unit is read."""

    def name(self) -> str:
        return self.unit.name

    def bad_record(self, error: BadRecordError, where: Where) -> None:
        """Count it, or raise `UsageError`."""
        if not self.options.skip_bad:
            raise UsageError(error.what, where=where(), do=error.do) from error
        self.report.add(error.reason, f"{where()}: {error.what}")

    def decoded(
        self,
        content: bytes,
        where: Where,
        offset: int | None = None,
        *,
        report: Report | None = None,
    ) -> str | None:
        """UTF-8 as text; `None` if it is left out, counted. Raises `UsageError` by the options.

        `offset` is that of `content` in the file, where it is known. A byte order mark at 0 is no
        text. What happens is counted in `report` instead of the unit's where one is given.
        """
        if offset == 0 and content.startswith(codecs.BOM_UTF8):
            content, offset = content[3:], 3
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            report = self.report if report is None else report
            if self.options.encoding_errors == "replace":
                report.altered[REPLACED] += 1
                return content.decode(errors="replace")
            what = f"byte 0x{content[error.start]:02x}"
            what += f" at offset {offset + error.start}" if offset is not None else ""
            if self.options.encoding_errors == "skip":
                report.add(NOT_UTF8, f"{where()}: {what}")
                return None
            raise UsageError(
                f"not UTF-8 text: {what}",
                where=where(),
                do="convert it (iconv -f ENCODING -t UTF-8), leave the file out, or choose "
                "--encoding-errors replace or skip",
            ) from error


HELD_BYTES = 4 * PIECE_BYTES
"""Bytes kept in memory of a document whose parts must wait until all are known; more goes to a file."""
_LINE_BEFORE_WORD = re.compile(rb"(?<=[!-~])\n(?=[A-Za-z])")
_SPACE_BETWEEN_WORDS = re.compile(rb"(?<=[A-Za-z]) (?=[A-Za-z])")
_SEARCHED = 64 << 10


def wanted(documents: Iterable[Document], reader: UnitReader) -> Iterator[Document]:
    """Without those that are empty or not of the length that is asked for; long ones in parts."""
    # Characters, of which each has at most 4 bytes: such a document needs no other look.
    options = reader.options
    low, high = max(options.min_chars, 1), PIECE_BYTES // 4
    high = high if options.max_chars is None else min(high, options.max_chars)
    inside = False
    for document in documents:
        text, origin, part, _ = document
        # Parts have been looked at as a whole by `long_document`.
        if part or inside or low <= len(text) <= high:
            inside = part
            yield document
        elif (why := _reason_unwanted(len(text), options)) is not None:
            reader.report.add(why, origin)
        elif len(text) * 4 <= PIECE_BYTES:
            yield document
        else:
            step = PIECE_BYTES // 4
            blocks = (text[at : at + step].encode() for at in range(0, len(text), step))
            yield from _as_documents((part.decode() for part in cut_parts(blocks)), origin)


def long_document(
    blocks: Iterable[bytes], reader: UnitReader, name: str, origin: str, offset: int | None = None
) -> Iterator[Document]:
    """A document of any length out of the bytes at `offset` of `name`, in bounded memory.

    All of `blocks` is taken, also where the document is left out.
    """
    options = reader.options
    parts = _decoded_parts(blocks, reader, name, offset)
    if not options.min_chars and options.max_chars is None and options.encoding_errors != "skip":
        yield from _as_documents((part for part in parts if part is not None), origin)
        return
    with SpooledTemporaryFile(max_size=HELD_BYTES) as held:
        sizes: list[int] = []
        chars, whole = 0, True
        for part in parts:
            whole = whole and part is not None
            if part is not None and (options.max_chars is None or chars <= options.max_chars):
                sizes.append(held.write(part.encode()))
            chars += len(part or "")
        why = _reason_unwanted(chars, options) if whole else None
        if why is not None:
            reader.report.add(why, origin)
        elif whole:
            held.seek(0)
            yield from _as_documents((held.read(size).decode() for size in sizes), origin)


def _decoded_parts(
    blocks: Iterable[bytes], reader: UnitReader, name: str, offset: int | None
) -> Iterator[str | None]:
    """`None`, at the end, where the document must be left out."""
    mine = Report()
    blocks = iter(blocks)
    for part in cut_parts(blocks):
        text = reader.decoded(part, lambda: name, offset, report=mine)
        yield text
        if text is None:
            for _ in blocks:
                pass
            break
        offset = offset + len(part) if offset is not None else None
    for reason in mine.altered:
        mine.altered[reason] = 1
    reader.report.merge(mine)


def _as_documents(parts: Iterable[str], origin: str) -> Iterator[Document]:
    """All parts but the last are marked as such."""
    before: str | None = None
    for part in parts:
        if before is not None:
            yield Document(before, origin, part=True)
        before = part
    if before is not None:
        yield Document(before, origin)


def _reason_unwanted(chars: int, options: ReadOptions) -> str | None:
    if not chars:
        return "empty"
    if chars < options.min_chars:
        return f"shorter than {options.min_chars} characters"
    if options.max_chars is not None and chars > options.max_chars:
        return f"longer than {options.max_chars} characters"
    return None


def cut_parts(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in parts of at most `PIECE_BYTES`, cut at places that only the bytes decide."""
    held: list[bytes] = []
    size = 0
    for block in blocks:
        held.append(block)
        size += len(block)
        while size > PIECE_BYTES:
            joined = b"".join(held)
            cut = _part_cut(joined[:PIECE_BYTES])
            yield joined[:cut]
            held = [joined[cut:]]
            size -= cut
    yield b"".join(held)


def _part_cut(block: bytes) -> int:
    """The cut of a document inside `block`, which continues after it: after 1 byte or more.

    Where both sides encode alone as they do together, for the tokenizers in use: between a single
    line end and a word, else before a single space between words. Text without either in its last
    64 KiB (Chinese, long runs of symbols) is cut between characters, which may move a token.
    """
    low = max(len(block) - _SEARCHED, 1)
    tail = block[low - 1 :]
    for pattern, after in ((_LINE_BEFORE_WORD, 1), (_SPACE_BETWEEN_WORDS, 0)):
        found = None
        for found in pattern.finditer(tail):  # noqa: B007  (the last one is wanted)
            pass
        if found is not None:
            return low - 1 + found.start() + after
    return character_cut(block)


def character_cut(block: bytes) -> int:
    """The last place in `block` where a character begins, but not 0: a character may be cut there."""
    for cut in range(len(block) - 1, max(len(block) - 4, 0), -1):
        if block[cut] & 0xC0 != 0x80:
            return cut
    return len(block)
