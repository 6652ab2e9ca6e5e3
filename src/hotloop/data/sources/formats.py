"""Which format a file is in, by its name."""

from __future__ import annotations

from pathlib import PurePosixPath

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

RECORD_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
"""Formats of records, wherever the file stands."""
TABLE_SUFFIXES = {".csv": "csv", ".tsv": "tsv"}
"""Formats of records in a file given by itself; in a directory such files are text."""

COMPRESSION_SUFFIXES = {
    ".gz": "gz",
    ".gzip": "gz",
    ".zst": "zst",
    ".zstd": "zst",
    ".xz": "xz",
    ".bz2": "bz2",
}
ARCHIVE_SUFFIXES = frozenset({".tar", ".tgz", ".tbz2", ".txz", ".zip", ".7z", ".rar"})

TEXT_FORMATS = frozenset({"text", "tree-text", "any-text"})
RECORD_FORMATS = frozenset({"jsonl", "csv", "tsv", "parquet", "arrow", "hf"})
COMPRESSIBLE = TEXT_FORMATS | {"jsonl", "csv", "tsv"}
"""Formats that are also read through a compression, from their start."""

_SIGNS = (
    (b"PAR1", "parquet", None),
    (b"ARROW1", "arrow", None),
    (b"\x1f\x8b", "text", "gz"),
    (b"\x28\xb5\x2f\xfd", "text", "zst"),
    (b"\xfd7zXZ\0", "text", "xz"),
    (b"BZh", "text", "bz2"),
)


def format_by_content(head: bytes) -> tuple[str, str | None]:
    """(format, compression) of what has no name, by its first 16 bytes."""
    for sign, form, compression in _SIGNS:
        if head.startswith(sign) and (compression != "bz2" or head[4:10] == b"1AY&SY"):
            return form, compression
    return "text", None


def format_of(name: str, *, in_tree: bool) -> tuple[str, str | None]:
    """(format, compression) of a file by its name.

    `text`: given by itself; `tree-text`: in a directory; `any-text`: in a directory, text if it
    decodes and else binary; `archive`: cannot be read.
    """
    path = PurePosixPath(name)
    compression = COMPRESSION_SUFFIXES.get(path.suffix.lower())
    if compression is not None:
        path = path.with_suffix("")
    suffix = path.suffix.lower()
    if suffix in ARCHIVE_SUFFIXES:
        return "archive", compression
    if suffix in RECORD_SUFFIXES:
        return RECORD_SUFFIXES[suffix], compression
    if not in_tree:
        return TABLE_SUFFIXES.get(suffix, "text"), compression
    return "tree-text" if suffix in TEXT_SUFFIXES else "any-text", compression
