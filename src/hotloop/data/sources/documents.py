"""What every document passes through: filters by length, and parts where it is long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile

from hotloop.data.sources.cut import part_cut
from hotloop.data.sources.decode import decode
from hotloop.data.sources.unit import PIECE_BYTES, Document, ReadOptions, Report

HELD_BYTES = 4 * PIECE_BYTES
"""Of a document whose parts must wait until all are known; more goes to a temporary file."""


def short_document(document: Document, options: ReadOptions, report: Report) -> Iterator[Document]:
    """The document, if it is wanted; in parts if it is long."""
    text = document.text
    why = unwanted(len(text), options)
    if why is not None:
        report.add(why, document.origin)
    elif len(text) * 4 <= PIECE_BYTES:
        yield document
    else:
        yield from _as_documents(
            (part.decode() for part in cut_parts(_encoded(text))), document.origin
        )


def long_document(
    blocks: Iterable[bytes],
    *,
    name: str,
    offset: int,
    origin: str,
    options: ReadOptions,
    report: Report,
) -> Iterator[Document]:
    """A document of any length out of the bytes at `offset` of `name`, in bounded memory.

    All of `blocks` is taken, also where the document is left out.
    """
    parts = _decoded(cut_parts(blocks), name, offset, origin, options, report)
    if not options.min_chars and options.max_chars is None and options.encoding_errors != "skip":
        yield from _as_documents((part for part in parts if part is not None), origin)
        return
    with SpooledTemporaryFile(max_size=HELD_BYTES) as held:
        sizes: list[int] = []
        chars, whole = 0, True
        for part in parts:
            if part is None:
                whole = False
            elif whole and (options.max_chars is None or chars <= options.max_chars):
                sizes.append(held.write(part.encode()))
            chars += len(part or "")
        why = unwanted(chars, options) if whole else None
        if why is not None:
            report.add(why, origin)
        elif whole:
            held.seek(0)
            yield from _as_documents((held.read(size).decode() for size in sizes), origin)


def unwanted(chars: int, options: ReadOptions) -> str | None:
    """Why a document of so many characters is left out. Empty ones are counted as such."""
    if 0 < chars < options.min_chars:
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
            cut = part_cut(joined[:PIECE_BYTES])
            yield joined[:cut]
            held = [joined[cut:]]
            size -= cut
    yield b"".join(held)


def _as_documents(parts: Iterable[str], origin: str) -> Iterator[Document]:
    """All parts but the last are marked as such."""
    before: str | None = None
    for part in parts:
        if before is not None:
            yield Document(before, origin, part=True)
        before = part
    if before is not None:
        yield Document(before, origin)


def _decoded(
    parts: Iterable[bytes],
    name: str,
    offset: int,
    origin: str,
    options: ReadOptions,
    report: Report,
) -> Iterator[str | None]:
    """`None`, once, where the document must be left out."""
    dropped = False
    altered = Report()
    for part in parts:
        if not dropped:
            text = decode(
                part,
                options,
                report if options.encoding_errors == "skip" else altered,
                name=name,
                offset=offset,
                origin=origin,
            )
            dropped = text is None
            yield text
        offset += len(part)
    for reason in altered.altered:
        report.alter(reason)


def _encoded(text: str) -> Iterator[bytes]:
    step = PIECE_BYTES // 4
    for begin in range(0, len(text), step):
        yield text[begin : begin + step].encode()
