"""Bytes to text: UTF-8, and what to do with what is not."""

from __future__ import annotations

import codecs

from hotloop.core.errors import UsageError
from hotloop.data.sources.unit import ReadOptions, Report

NOT_UTF8 = "not UTF-8"
REPLACED = "bytes that are not UTF-8 replaced by U+FFFD"


def decode(
    block: bytes, options: ReadOptions, report: Report, *, name: str, offset: int, origin: str
) -> str | None:
    """The text of `block`, which stands at `offset` bytes of `name`; `None` if it is left out.

    A byte order mark at offset 0 is no text. Raises `UsageError` where the options say so.
    """
    if offset == 0 and block.startswith(codecs.BOM_UTF8):
        block, offset = block[3:], 3
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        if options.encoding_errors == "replace":
            report.alter(REPLACED)
            return block.decode("utf-8", "replace")
        if options.encoding_errors == "skip":
            report.add(NOT_UTF8, f"{origin}: byte 0x{block[error.start]:02x}")
            return None
        raise UsageError(
            f"not UTF-8 text: byte 0x{block[error.start]:02x} at offset {offset + error.start}",
            where=name,
            do="convert it (iconv -f ENCODING -t UTF-8), leave the file out, or choose "
            "--encoding-errors replace or skip",
        ) from error
