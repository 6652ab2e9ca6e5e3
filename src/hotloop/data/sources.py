"""Documents out of text files, source trees, `.jsonl` and the interpreter's own standard library.

What is one document:
- a line of a `.jsonl` file, its `text` field;
- a file inside a directory, cut into pieces of at most `TREE_PIECE_BYTES` where it is longer;
- of a plain text file given by itself (a book, a dump), a piece of 4 to 64 KiB, so that even a
  small file gives enough documents to hold some out.
Pieces end at a blank line, else at a line end, else between two characters. No file is read whole.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hotloop.core.errors import UsageError

PYTHON_STDLIB = "python-stdlib"
TREE_PIECE_BYTES = 1 << 20
FILE_PIECES = 128
FILE_PIECE_BYTES = (4 << 10, 64 << 10)
"""Least and most bytes in a piece of a plain text file; between them it makes `FILE_PIECES`."""
MAX_LINE_BYTES = 16 << 20
"""Longest line of a `.jsonl` file."""
MAX_EXAMPLES = 8

TEXT_SUFFIXES = frozenset(
    f".{name}"
    for names in (
        "asm bash c cc clj cmake cpp cs css cu cuh cxx dart ex exs f f90 go gradle h hpp hs hxx",
        "java jl js jsx kt kts less lisp lua m ml mli nim php pl pm proto ps1 py pyi pyx r rb rs",
        "s scala scm scss sh sql swift tcl ts tsx vim vue zig zsh",
        "bib cfg conf csv diff htm html ini json markdown md patch rst srt svg tex text toml tsv",
        "txt xml yaml yml",
    )
    for name in names.split()
)
"""Files that must be UTF-8. Others in a directory are text if they decode, and else binary."""

_SKIPPED_DIRECTORIES = frozenset({"__pycache__"})
_DECLARED_ENCODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it stands."""

    text: str
    origin: str


@dataclass(slots=True)
class Skipped:
    """Files left out, counted by reason; filled while the documents are read."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def add(self, reason: str, name: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if reason != "empty" and len(self.examples) < MAX_EXAMPLES:
            self.examples.append(name.encode("utf-8", "replace").decode())


def read_documents(
    source: str, *, text_field: str = "text", skipped: Skipped, exclude: Path | None = None
) -> Iterator[Document]:
    """The documents of one source, always in the same order; empty ones are left out and counted.

    `exclude` is a directory not to walk into (where the result is written). Raises `UsageError`
    for a missing source, unreadable files, text that is not UTF-8 and malformed lines.
    """
    if source == PYTHON_STDLIB:
        found = _standard_library(skipped)
    else:
        path = Path(source).expanduser()
        if path.is_dir():
            found = _tree(path, text_field, skipped, exclude)
        elif path.is_file():
            found = _file(path, text_field)
        elif path.exists():
            raise UsageError("the source is neither a file nor a directory", where=source)
        else:
            raise UsageError(
                "no such source",
                where=source,
                do=f"name a file, a directory, or `{PYTHON_STDLIB}`",
            )
    for document in found:
        if document.text:
            yield document
        else:
            skipped.add("empty", document.origin)


def tree_files(root: Path, *, exclude: Path | None = None) -> Iterator[Path]:
    """Files below `root` in sorted order, without hidden ones, `__pycache__` and `exclude`."""
    excluded = exclude.resolve() if exclude is not None else None

    def refuse(error: OSError) -> None:
        raise UsageError(f"cannot read: {error.strerror}", where=str(error.filename)) from error

    for directory, names, files in os.walk(root, onerror=refuse):
        here = Path(directory)
        names[:] = sorted(
            name
            for name in names
            if not name.startswith(".")
            and name not in _SKIPPED_DIRECTORIES
            and (excluded is None or (here / name).resolve() != excluded)
        )
        for name in sorted(files):
            if not name.startswith("."):
                yield here / name


def standard_library_path() -> Path:
    """Where the running interpreter keeps its library. Raises `UsageError` if it has no sources."""
    path = Path(sysconfig.get_path("stdlib"))
    if not (path / "os.py").is_file():
        raise UsageError(
            "this interpreter's standard library has no source files",
            where=str(path),
            do="name a file or a directory instead",
        )
    return path


def _standard_library(skipped: Skipped) -> Iterator[Document]:
    root = standard_library_path()
    for path in tree_files(root):
        relative = path.relative_to(root)
        if path.suffix != ".py" or {"site-packages", "dist-packages"} & set(relative.parts):
            continue
        # The library's own tests hold files that are deliberately in another encoding.
        if not _is_utf8(path):
            declared = _declared_encoding(path)
            reason = f"declares {declared}" if declared else "not UTF-8 (a test of bad source)"
            skipped.add(reason, f"{relative}")
            continue
        yield from _pieces(path, TREE_PIECE_BYTES)


def _tree(
    root: Path, text_field: str, skipped: Skipped, exclude: Path | None
) -> Iterator[Document]:
    for path in tree_files(root, exclude=exclude):
        if not path.is_file():
            skipped.add("not a regular file", str(path))
        elif path.suffix.lower() == ".jsonl":
            yield from _lines(path, text_field)
        elif path.suffix.lower() in TEXT_SUFFIXES or (not _has_nul(path) and _is_utf8(path)):
            yield from _pieces(path, TREE_PIECE_BYTES)
        else:
            skipped.add("binary", str(path))


def _file(path: Path, text_field: str) -> Iterator[Document]:
    if path.suffix.lower() == ".jsonl":
        yield from _lines(path, text_field)
    else:
        least, most = FILE_PIECE_BYTES
        yield from _pieces(path, min(max(path.stat().st_size // FILE_PIECES, least), most))


def _pieces(path: Path, bound: int) -> Iterator[Document]:
    """The text of a file in pieces of at most `bound` bytes."""
    try:
        with path.open("rb") as file:
            start = 0
            pending = b""
            while True:
                pending += file.read(bound + 1 - len(pending))
                if len(pending) <= bound:
                    yield Document(_decode(pending, path, start), _origin(path, start))
                    return
                cut = _cut(pending[:bound])
                yield Document(_decode(pending[:cut], path, start), _origin(path, start))
                pending = pending[cut:]
                start += cut
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", where=str(path)) from error


def _origin(path: Path, start: int) -> str:
    return f"{path}@{start}" if start else str(path)


def _cut(block: bytes) -> int:
    """Where to end a piece that must end inside `block`: after 1 byte or more."""
    blank = block.rfind(b"\n\n", len(block) // 2)
    if blank >= 0:
        return blank + 2
    line = block.rfind(b"\n")
    if line >= 0:
        return line + 1
    for cut in range(len(block) - 1, max(len(block) - 4, 0), -1):
        if block[cut] & 0xC0 != 0x80:  # the first byte of a character
            return cut
    return len(block)


def _decode(block: bytes, path: Path, start: int) -> str:
    if start == 0 and block.startswith(codecs.BOM_UTF8):
        block, start = block[3:], 3
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"not UTF-8 text: byte 0x{block[error.start]:02x} at offset {start + error.start}",
            where=str(path),
            do="convert it (iconv -f ENCODING -t UTF-8) or leave the file out",
        ) from error


def _lines(path: Path, text_field: str) -> Iterator[Document]:
    try:
        with path.open("rb") as file:
            start, number = 0, 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > MAX_LINE_BYTES:
                    raise UsageError(f"line longer than {MAX_LINE_BYTES >> 20} MiB", where=where)
                if line.strip():
                    yield Document(_field(_decode(line, path, start), text_field, where), where)
                start += len(line)
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", where=str(path)) from error


def _field(line: str, text_field: str, where: str) -> str:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"malformed line: {error}", where=where) from error
    if not isinstance(values, dict):
        raise UsageError("malformed line: not a JSON object", where=where)
    if text_field not in values:
        have = ", ".join(sorted(values)[:8]) or "none"
        raise UsageError(
            f"no field {text_field!r}",
            where=where,
            do=f"choose one with --text-field; the fields here: {have}",
        )
    text = values[text_field]
    if not isinstance(text, str):
        raise UsageError(f"field {text_field!r} is not a string", where=where)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"field {text_field!r} holds half of a surrogate pair at character {error.start}",
            where=where,
        ) from error
    return text


def _has_nul(path: Path) -> bool:
    """Git's sign of a binary file: a zero byte in the first 8000."""
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(8000)
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", where=str(path)) from error


def _is_utf8(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while block := file.read(TREE_PIECE_BYTES):
                decoder.decode(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", where=str(path)) from error
    return True


def _declared_encoding(path: Path) -> str | None:
    """The encoding a Python file declares in its first two lines (PEP 263)."""
    with path.open("rb") as file:
        for line in (file.readline(200), file.readline(200)):
            if match := _DECLARED_ENCODING.match(line):
                return match.group(1).decode("ascii").lower()
    return None
