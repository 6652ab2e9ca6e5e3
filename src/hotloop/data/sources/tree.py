"""The files that a name on this machine stands for, in a fixed order, and the format of each by its name."""

from __future__ import annotations

import glob
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath, PurePosixPath

from hotloop.core.errors import UsageError
from hotloop.data.sources import NAMES, ReadOptions, Report
from hotloop.data.sources.arrow import saved_files
from hotloop.data.sources.files import cannot_read

_NEITHER = "the source is neither a file nor a directory"


@dataclass(slots=True)
class Walk:
    """How directories are walked, and what was left out of them."""

    options: ReadOptions
    exclude: Path | None
    """Not walked into, and not counted."""
    report: Report
    walked: bool = False
    """A directory of any files was among them."""


def local_names(source: str, walk: Walk) -> Iterator[tuple[str, bool]]:
    """(path, whether it stands in a directory that was named) of the files of a source.

    Raises `UsageError` where there is none, `OSError` for what cannot be read.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        yield from _directory(path, walk)
    elif path.is_file():
        yield str(path), False
    elif path.exists():
        raise UsageError(_NEITHER, where=source)
    elif glob.has_magic(source):
        yield from _glob(str(path), walk)
    else:
        raise UsageError("no such source", where=source, do=NAMES)


def _glob(pattern: str, walk: Walk) -> Iterator[tuple[str, bool]]:
    """As if what the pattern stands for had been named one by one."""
    # Not Path.glob: it knows no absolute patterns.
    deep = "**" in Path(pattern).parts
    found = sorted(set(map(str, _deep_glob(pattern, walk)) if deep else glob.glob(pattern)))  # noqa: PTH207
    if not found:
        do = f"run `ls` with it from {Path.cwd()}: a relative pattern begins there"
        raise UsageError("no file matches the pattern", where=pattern, do=do)
    for path in map(Path, found):
        resolved = path.resolve()
        if walk.exclude is not None and walk.exclude.resolve() in (resolved, *resolved.parents):
            continue
        if path.is_dir():
            yield from _directory(path, walk)
        elif path.is_file():
            yield str(path), False
        else:
            walk.report.add("not a regular file", str(path))


def _deep_glob(pattern: str, walk: Walk) -> Iterator[Path]:
    """Files that fit a pattern with `**`, which stands for directories but for no link to one.

    Links are counted; hidden files never fit.
    """
    parts = Path(pattern).parts
    at = parts.index("**")
    rest = "/".join(part if part == "**" else re.sub(r"\*+", "*", part) for part in parts[at:])
    # The roots may be patterns as well; the tree below them is walked as any other.
    roots = glob.glob(str(Path(*parts[:at]))) if at else ["."]  # noqa: PTH207
    for root in filter(os.path.isdir, sorted(roots)):
        seen = Walk(walk.options, walk.exclude, Report())
        for path in _tree_files(Path(root), seen):
            if _compiled(rest).fullmatch(path.relative_to(root).as_posix()):
                yield path
        seen.report.counts.pop("hidden", None)
        seen.report.examples.pop("hidden", None)
        walk.report.merge(seen.report)


def _directory(root: Path, walk: Walk) -> Iterator[tuple[str, bool]]:
    saved = saved_files(root)
    if saved is not None:
        yield from ((str(path), True) for path in saved)
        return
    walk.walked = True
    for path in _tree_files(root, walk):
        if not is_left_out(path.relative_to(root), str(path), walk):
            if path.is_file():
                yield str(path), True
            else:
                walk.report.add("not a regular file", str(path))


def _tree_files(root: Path, walk: Walk) -> Iterator[Path]:
    """Files below `root`, sorted, without hidden ones, `__pycache__` and what was prepared from text.

    What is left out is counted, a directory once. Raises `OSError` for a directory that cannot be read.
    """
    excluded = walk.exclude.resolve() if walk.exclude is not None else None

    def refuse(error: OSError) -> None:
        if not walk.options.skip_bad or str(error.filename) == str(root):
            raise cannot_read(str(error.filename), error) from error
        walk.report.add("cannot be opened", f"{error.filename}: {error.strerror}")

    for directory, names, files in os.walk(root, onerror=refuse):
        here = Path(directory)
        walked = []
        for path in (here / name for name in sorted(names)):
            if _is_hidden(path.name):
                walk.report.add("hidden", str(path))
            elif path.is_symlink():
                walk.report.add("link to a directory", str(path))
            elif excluded is not None and path.resolve() == excluded:
                pass
            elif _is_prepared(path):
                walk.report.add("prepared by hotloop", str(path))
            else:
                walked.append(path.name)
        names[:] = walked
        for path in (here / name for name in sorted(files)):
            if path.name.startswith("."):
                walk.report.add("hidden", str(path))
            else:
                yield path


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _is_prepared(directory: Path) -> bool:
    """True for what `hotloop prepare` wrote: ids, and no text."""
    manifest = directory / "manifest.json"
    try:
        return manifest.is_file() and b'"hotloop.prepared/' in manifest.read_bytes()
    except OSError:
        return False


def is_left_out(inside: PurePath, name: str, walk: Walk) -> bool:
    """True if the file at `inside` of a directory is hidden or not chosen, which is counted."""
    relative, options = inside.as_posix(), walk.options
    if any(map(_is_hidden, inside.parts)):
        walk.report.add("hidden", name)
    elif options.include and not any(matches(relative, each) for each in options.include):
        walk.report.add("not in --include", name)
    elif any(matches(relative, each) for each in options.exclude):
        walk.report.add("in --exclude", name)
    else:
        return False
    return True


def matches(relative: str, pattern: str) -> bool:
    """True if a `/`-separated path fits a pattern of `ReadOptions.include`."""
    expression = _compiled(pattern.strip("/"))
    names = [relative] if "/" in pattern.strip("/") else relative.split("/")
    return any(expression.fullmatch(name) for name in names)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """`**` is any directories, `*` and `?` stay within a name, `[...]` is a set."""
    from fsspec.utils import glob_translate

    try:
        return re.compile(glob_translate(pattern))
    except (ValueError, re.error) as error:
        raise UsageError(f"bad pattern {pattern!r}: {error}") from error


def standard_library_path() -> Path:
    """The directory of the running interpreter's library. Raises `UsageError` if it has no sources."""
    path = Path(sysconfig.get_path("stdlib"))
    if not (path / "os.py").is_file():
        raise UsageError(
            "this interpreter's standard library has no source files",
            where=str(path),
            do="name a file or a directory instead",
        )
    return path


def standard_library_files() -> Iterator[Path]:
    root = standard_library_path()
    for path in _tree_files(root, Walk(ReadOptions(), None, Report())):
        installed = {"site-packages", "dist-packages"} & set(path.relative_to(root).parts)
        if path.suffix == ".py" and not installed:
            yield path


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

_MAGIC = (
    (b"PAR1", "parquet", None),
    (b"ARROW1", "arrow", None),
    (b"\x1f\x8b", "text", "gz"),
    (b"\x28\xb5\x2f\xfd", "text", "zst"),
    (b"\xfd7zXZ\0", "text", "xz"),
    (b"BZh", "text", "bz2"),
)


def format_by_content(head: bytes) -> tuple[str, str | None]:
    """(format, compression) of what has no name, by its first 16 bytes."""
    for sign, form, compression in _MAGIC:
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
