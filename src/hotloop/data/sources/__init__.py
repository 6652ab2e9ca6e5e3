"""Documents out of what people have: files, trees, records, compressed, behind a URL, on a hub.

What is one document:
- a record's text field, in formats of records (jsonl, csv, parquet, Arrow, hub data sets);
- a file inside a directory, cut into pieces of at most 1 MiB where it is longer;
- of a plain text file given by itself (a book, a dump), a piece of 4 to 64 KiB, so that even a
  small file gives enough documents to hold some out;
- with a separator, what stands between two of them.
Pieces end at a blank line, else at a line end, else between two characters. No file is read whole.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple

from hotloop.core.data_config import ReadingConfig, delimiter_of, unescape

PYTHON_STDLIB = "python-stdlib"

NAMES = f"name a file, a directory, a pattern such as `texts/**/*.txt`, a URL, `hf:NAME`, `-` or `{PYTHON_STDLIB}`"
STANDARD_INPUT = "-"

PIECE_BYTES = 8 << 20
"""A document longer than this comes in several parts of at most this many UTF-8 bytes."""
UNIT_BYTES = 4 << 20
"""Bytes of a file in one unit, where the file can be cut."""
REMOTE_UNIT_BYTES = 64 << 20
"""The same for a file behind a network, where every unit costs a round trip or two."""
MAX_EXAMPLES = 8
"""Examples kept of each reason."""

BLANK_LINE = "blank-line"
WHOLE_FILE = "file"

Format = Literal["text", "jsonl", "csv", "tsv", "parquet", "arrow"]
EncodingErrors = Literal["error", "replace", "skip"]


def is_url(name: str) -> bool:
    head, sign, _ = name.partition("://")
    return bool(sign) and head.isascii() and "/" not in head


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest piece of a source that can be read alone."""

    source: int
    """Index in the list of sources as given."""
    name: str
    """Path or URL; `-` for standard input."""
    format: str
    """A key of `read.READERS`."""
    compression: str | None
    begin: int
    """In bytes, row groups, record batches or rows, as the format counts."""
    end: int | None
    """`None`: to the end, which is not known yet."""
    num_bytes: int
    """For sharing the work and for progress; of the compressed form where there is one."""
    state: tuple[int, int] | None
    """Size in bytes and time of change in ns (or a hash of what stands for it); `None` if unknown."""

    @property
    def key(self) -> list[object]:
        """JSON-ready: everything that its documents depend on, but for the source."""
        return [self.name, self.format, self.compression, self.begin, self.end, self.state]


class Document(NamedTuple):
    """One text, or a part of one, and where it stands. A tuple, because millions are made."""

    text: str
    origin: str
    """`NAME@BYTE` or `NAME:ROW`."""
    part: bool = False
    """More of the same document follows."""
    content: bytes | None = None
    """The text as UTF-8, where the reader has it at hand."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What changes which documents are read: see `ReadingConfig`, whose strings are as typed."""

    text_field: str = "text"
    """`a.b` is field `b` of `a`, unless a field is named so."""
    format: Format | None = None
    separator: str | None = None
    delimiter: str | None = None
    min_chars: int = 0
    max_chars: int | None = None
    """Characters are code points."""
    skip_bad: bool = False
    encoding_errors: EncodingErrors = "error"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Patterns: `*` within a name, `**` across directories; one without `/` is for the name of a file or of any
    directory above it."""
    standard_input: str | None = None
    """File that holds what came in by `-`, see `spool_standard_input`. Not part of the key."""

    @staticmethod
    def of(reading: ReadingConfig) -> ReadOptions:
        """What a config, or the options of `hotloop prepare`, ask for."""
        values = reading.model_dump()
        values |= {"include": tuple(reading.include), "exclude": tuple(reading.exclude)}
        if reading.separator is not None:
            values["separator"] = unescape(reading.separator)
        if reading.delimiter is not None:
            values["delimiter"] = delimiter_of(reading.delimiter)
        return ReadOptions(**values)

    def key(self) -> dict[str, object]:
        """JSON-ready: everything that the documents depend on."""
        values: dict[str, object] = {**asdict(self)}
        del values["standard_input"]
        return {
            name: list(each) if isinstance(each, tuple) else each for name, each in values.items()
        }


@dataclass(slots=True)
class Report:
    """What was left out, and what was altered, by reason; filled while reading."""

    counts: Counter[str] = field(default_factory=Counter)
    """Documents or files left out."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Where, the first `MAX_EXAMPLES` of each reason."""
    altered: Counter[str] = field(default_factory=Counter)
    """Documents that were kept, but not as they were."""

    def add(self, reason: str, where: str) -> None:
        self.counts[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(where.encode("utf-8", "replace").decode())

    def merge(self, other: Report) -> None:
        """Add what a later unit reported."""
        self.counts.update(other.counts)
        self.altered.update(other.altered)
        for reason, examples in other.examples.items():
            mine = self.examples.setdefault(reason, [])
            mine.extend(examples[: MAX_EXAMPLES - len(mine)])
