"""The files below a directory, in a fixed order, and the interpreter's own library."""

from __future__ import annotations

import glob
import os
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.data.sources.files import cannot_read
from hotloop.data.sources.unit import ReadOptions, Report

SKIPPED_DIRECTORIES = frozenset({"__pycache__"})


def tree_files(
    root: Path,
    *,
    exclude: Path | None = None,
    report: Report | None = None,
    skip_unreadable: bool = False,
) -> Iterator[Path]:
    """Files below `root` in sorted order, without hidden ones, `__pycache__` and `exclude`, and
    without what was prepared from text. Raises `UsageError` for a directory that cannot be read.

    What is left out, but for `exclude`, is counted in `report`, a directory once.
    """
    excluded = exclude.resolve() if exclude is not None else None
    left_out = report if report is not None else Report()

    def refuse(error: OSError) -> None:
        if skip_unreadable and str(error.filename) != str(root):
            left_out.add("cannot be opened", f"{error.filename}: {error.strerror}")
            return
        raise cannot_read(str(error.filename), error) from error

    for directory, names, files in os.walk(root, onerror=refuse):
        here = Path(directory)
        walked = []
        for name in sorted(names):
            path = here / name
            if name.startswith(".") or name in SKIPPED_DIRECTORIES:
                left_out.add("hidden", str(path))
            elif path.is_symlink():
                left_out.add("link to a directory", str(path))
            elif excluded is not None and path.resolve() == excluded:
                continue
            elif _is_prepared(path):
                left_out.add("prepared by hotloop", str(path))
            else:
                walked.append(name)
        names[:] = walked
        for name in sorted(files):
            if name.startswith("."):
                left_out.add("hidden", str(here / name))
            else:
                yield here / name


def glob_files(
    pattern: str, *, exclude: Path | None, report: Report, skip_unreadable: bool
) -> Iterator[Path]:
    """Files that fit a pattern with `**`, which stands for directories but for no link to one.

    Links are counted in `report`; hidden files never fit.
    """
    parts = Path(pattern).parts
    at = parts.index("**")
    rest = "/".join(p if p == "**" else re.sub(r"\*+", "*", p) for p in parts[at:])
    # The roots may be patterns as well; the tree below them is walked as any other.
    roots = glob.glob(str(Path(*parts[:at]))) if at else ["."]  # noqa: PTH207
    for root in filter(os.path.isdir, sorted(roots)):
        seen = Report()
        for path in tree_files(
            Path(root), exclude=exclude, report=seen, skip_unreadable=skip_unreadable
        ):
            if _compiled(rest).fullmatch(path.relative_to(root).as_posix()):
                yield path
        seen.counts.pop("hidden", None)
        seen.examples.pop("hidden", None)
        report.merge(seen)


def _is_prepared(directory: Path) -> bool:
    """Whether it is what `hotloop prepare` wrote: ids, and no text."""
    manifest = directory / "manifest.json"
    try:
        return manifest.is_file() and b'"hotloop.prepared/' in manifest.read_bytes()
    except OSError:
        return False


def chosen(relative: str, options: ReadOptions) -> str | None:
    """Why a file of a tree is left out by `include` and `exclude`; `None` if it is read."""
    if options.include and not any(matches(relative, pattern) for pattern in options.include):
        return "not in --include"
    if any(matches(relative, pattern) for pattern in options.exclude):
        return "in --exclude"
    return None


def matches(relative: str, pattern: str) -> bool:
    """Whether a `/`-separated path fits a pattern of `ReadOptions.include`."""
    expression = _compiled(pattern.strip("/"))
    if "/" in pattern.strip("/"):
        return expression.fullmatch(relative) is not None
    return any(expression.fullmatch(name) for name in relative.split("/"))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """`**` is any directories, `*` and `?` stay within a name, `[...]` is a set."""
    expression = ""
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|.", pattern, re.DOTALL):
        if token == "**/":
            expression += "(?:.*/)?"
        elif token == "**":
            expression += ".*"
        elif token == "*":
            expression += "[^/]*"
        elif token == "?":
            expression += "[^/]"
        elif len(token) > 2 and token[0] == "[":
            inner = token[1:-1].replace("\\", r"\\").replace("[", r"\[")
            expression += f"[{'^' + inner[1:] if inner[0] == '!' else inner}]"
        else:
            expression += re.escape(token)
    try:
        return re.compile(expression, re.DOTALL)
    except re.error as error:
        raise UsageError(f"bad pattern {pattern!r}: {error}") from error


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


def standard_library_files() -> Iterator[Path]:
    root = standard_library_path()
    for path in tree_files(root):
        relative = path.relative_to(root)
        if path.suffix == ".py" and not {"site-packages", "dist-packages"} & set(relative.parts):
            yield path
