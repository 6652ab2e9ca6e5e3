"""A line of JSON that is too long to hold: its text is found in one pass and decoded in a second.

Long strings are set aside while the line is scanned, and what remains is parsed as any other line.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from hotloop.data.sources.cut import character_cut
from hotloop.data.sources.fields import (
    MALFORMED,
    BadRecordError,
    field_of,
    parse_record,
    strip_mark,
)
from hotloop.data.sources.text import read_exactly

LONG_LINE_BYTES = 16 << 20
"""Longer lines are not held in memory."""
LONG_STRING_BYTES = 1 << 20
"""Longer strings of such lines are not held in memory."""
BLOCK_BYTES = 1 << 20

_QUOTE_OR_ESCAPE = re.compile(rb'["\\]')
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
"""Of a string, up to its end or to half an escape at the end of a block."""
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line of `length` bytes at `begin` of a file that can be read again."""

    file: BinaryIO
    begin: int
    length: int
    first: bool
    """Of its source, where a byte order mark may stand."""

    def blocks(self, begin: int = 0, length: int | None = None) -> Iterator[bytes]:
        left = self.length - begin if length is None else length
        at = self.begin + begin
        while left:
            self.file.seek(at)
            block = read_exactly(self.file, min(left, BLOCK_BYTES))
            if not block:
                return
            yield block
            at += len(block)
            left -= len(block)


@dataclass(frozen=True, slots=True)
class LongString:
    """Where the bytes between the quotes of a string stand in a line."""

    begin: int
    length: int


def find_text(line: LongLine, text_field: str, *, errors: str) -> str | LongString | None:
    """The text of the line, or where it stands; `None` for null.

    Raises `BadRecordError` and `UnicodeDecodeError` as for a short line.
    """
    reduced, strings = _reduce(line)
    if errors == "replace":
        reduced = reduced.decode("utf-8", "replace").encode()
    text = field_of(parse_record(strip_mark(reduced, 0 if line.first else 1)), text_field)
    if text is None or text not in strings:
        return text
    string = strings[text]
    for _ in string_blocks(line, string, errors=errors):
        pass  # so that nothing is given of a string that turns out to be bad
    return string


def _reduce(line: LongLine) -> tuple[bytes, dict[str, LongString]]:
    """The line with a mark in place of every long string, and what the marks stand for."""
    salt = secrets.token_hex(8)
    strings: dict[str, LongString] = {}
    rest = bytearray()
    body: bytearray | None = None  # of the string that is being read
    begin = base = 0
    escaped = False
    for block in line.blocks():
        at = 0
        while at < len(block):
            if body is None:
                quote = block.find(b'"', at)
                rest += block[at : quote if quote >= 0 else len(block)]
                _check_rest(rest, line)
                if quote < 0:
                    break
                body, begin, at = bytearray(), base + quote + 1, quote + 1
                continue
            if escaped:
                stop, escaped = at + 1, False
            else:
                inside = _INSIDE.match(block, at)
                stop = inside.end() if inside else at
            if len(body) <= LONG_STRING_BYTES:
                body += block[at:stop]
            at = stop
            if at == len(block) or (match := _QUOTE_OR_ESCAPE.match(block, at)) is None:
                continue
            if match[0] == b"\\":
                escaped = True
                if len(body) <= LONG_STRING_BYTES:
                    body += b"\\"
            elif len(body) > LONG_STRING_BYTES:
                mark = f"long string {salt}-{len(strings)}"
                strings[mark] = LongString(begin, base + at - begin)
                rest += f'"{mark}"'.encode()
                body = None
            else:
                rest += b'"' + body + b'"'
                body = None
            at += 1
        base += len(block)
    if body is not None:
        raise BadRecordError(MALFORMED, "malformed line: a string that does not end")
    return bytes(rest), strings


def _check_rest(rest: bytearray, line: LongLine) -> None:
    if len(rest) > LONG_LINE_BYTES:
        raise BadRecordError(
            MALFORMED,
            f"line of {line.length:,} bytes, with more than {LONG_LINE_BYTES >> 20} MiB beside "
            "its long strings",
        )


def string_blocks(line: LongLine, string: LongString, *, errors: str) -> Iterator[bytes]:
    """The decoded string as UTF-8, in blocks.

    Raises `BadRecordError` for bad escapes, `UnicodeDecodeError` for bytes that are not UTF-8.
    """
    held = b""
    for block in line.blocks(string.begin, string.length):
        held += block
        cut = _string_cut(held)
        yield _decoded(held[:cut], errors)
        held = held[cut:]
    yield _decoded(held, errors)


def _decoded(piece: bytes, errors: str) -> bytes:
    text = piece.decode("utf-8", errors)
    try:
        return bytes(json.loads(f'"{text}"').encode())
    except UnicodeEncodeError as error:
        raise BadRecordError(MALFORMED, "a string with half of a surrogate pair") from error
    except ValueError as error:
        raise BadRecordError(MALFORMED, f"malformed line: {error}") from error


def _string_cut(piece: bytes) -> int:
    """Where a JSON string may be cut: not in an escape, a character or a pair of surrogates."""
    cut = len(piece)
    if piece[-1:] >= b"\x80":
        cut = character_cut(piece)
    last = piece.rfind(b"\\", max(cut - 6, 0), cut)
    if last >= 0 and _escapes(piece, last):
        length = 2 if piece[last + 1 : last + 2] not in (b"u", b"") else 6
        if last + length > cut:
            cut = last
    match = _HIGH_SURROGATE.search(piece, max(cut - 6, 0), cut)
    return match.start() if match and _escapes(piece, match.start()) else cut


def _escapes(piece: bytes, at: int) -> bool:
    """Whether the backslash at `at` begins an escape: after an odd number of them it is escaped."""
    head = piece[: at + 1]
    return (len(head) - len(head.rstrip(b"\\"))) % 2 == 1
