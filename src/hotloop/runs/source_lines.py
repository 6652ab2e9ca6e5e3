"""Lines of the user's source as they were when the command ran."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hotloop.core.command_run import CommandRun
from hotloop.core.untrusted import read_bytes
from hotloop.doctor.starting_point import BEFORE

MOST_BYTES = 1 << 22


def source_lines(directory: Path, run: CommandRun, sites: Iterable[str | None]) -> dict[str, str]:
    """The text of the line at each `file:line`, from what run directory `directory` kept, or from a file that has not
    changed since. Left out: other sites, files outside of the working directory, lines without text.
    """
    files: dict[str, list[str]] = {}
    found = {}
    for site in {each for each in sites if each is not None}:
        name, _, number = site.rpartition(":")
        if not name.endswith(".py") or not (number.isascii() and number.isdecimal()):
            continue
        if name not in files:
            files[name] = _lines(directory / BEFORE / "files", name) or _lines(
                Path(run.workdir), name, unchanged_since=run.started_at
            )
        line = files[name][int(number[:9]) - 1 : int(number[:9])]
        if line and line[0].strip():
            found[site] = line[0].strip()
    return found


def _lines(root: Path, name: str, *, unchanged_since: float | None = None) -> list[str]:
    """Empty where the file is not below `root`, cannot be read, or was changed."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()):  # a run directory may name any file
            return []
        if unchanged_since is not None and path.stat().st_mtime > unchanged_since:
            return []
        return read_bytes(path, limit_bytes=MOST_BYTES).decode("utf-8", "replace").split("\n")
    except (OSError, ValueError, RuntimeError):  # a name with a null, a loop of links
        return []
