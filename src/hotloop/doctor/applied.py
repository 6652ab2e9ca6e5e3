"""What live forms wrote down in their trials: whether and where each took effect, and whether it did harm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.core.child import APPLIED_FILE
from hotloop.core.measurement import Measurement
from hotloop.core.untrusted import object_lines
from hotloop.doctor.fixes import Fix


def why_not_applied(
    fix: Fix, runs: Sequence[Path], measurements: Sequence[Measurement]
) -> str | None:
    """Why its effect was not seen in a process that should have had it; `None` if it was in all.

    runs: the directories that these processes wrote into; none where it is written into the script's source.
    """
    lines = [applied_lines(run, fix.name) for run in runs]
    for found in lines:
        if not any(line["applied"] for line in found):
            refused = "; ".join(dict.fromkeys(str(line["what"]) for line in found))
            return refused or "it never said that it took effect"
    for measurement in measurements:
        census = measurement.census
        if census is not None and fix.technique.observed(census, fix.value) is False:
            said = next((f" (it said: {line['what']})" for found in lines for line in found), "")
            return f"its effect was not seen in the census{said}"
    return None


def why_wrong(fix: Fix, runs: Sequence[Path]) -> str | None:
    """What it gave the script, or may have given, that is not what the script gives itself; `None`: nothing.

    runs: as above. Such a line counts whatever the others say.
    """
    lines = [line for run in runs for line in applied_lines(run, fix.name)]
    said = dict.fromkeys(str(line["what"]) for line in lines if line.get("wrong"))
    return f"it gave the script something else: {'; '.join(said)}" if said else None


def applied_lines(run: Path, name: str) -> list[dict[str, Any]]:
    """What the live form of technique `name` wrote down in the process that wrote into `run`."""
    path = run / APPLIED_FILE
    entries = (entry for _, entry in object_lines(path)) if path.exists() else ()
    # A process that was killed while it wrote leaves half a line.
    return [entry for entry in entries if isinstance(entry, dict) and entry.get("fix") == name]


Span = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in the user's own code that was being executed."""

    file: str
    """Relative to where the script was started where it lies below."""
    line: int
    function: str
    span: Span | None
    """Line, column, last line and end of the expression; columns in bytes of UTF-8."""
    sha256: str | None
    """The digest of the file at the time."""
    direct: bool
    """It called what is inside of it itself, with no library between."""

    @property
    def site(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Taken:
    """One place where a fix took effect, or could not."""

    applied: bool
    what: str
    frames: tuple[Frame, ...]
    """Frames of the user's own code, the innermost first; empty where none was on the stack."""
    inside: str | None
    """`module.function` of the library that was innermost there, `torch` where that alone was."""
    facts: dict[str, Any] = field(default_factory=dict)


def taken_in(trials: Path, name: str, workdir: Path) -> tuple[Taken, ...]:
    """Every place where fix `name` said something in the processes of one comparison, each once.

    trials: the directory of the comparison. Places in its copies of the working directory become places
    in `workdir`.
    """
    found: dict[str, Taken] = {}
    for path in sorted(trials.glob(f"*/run/{APPLIED_FILE}")):
        for line in applied_lines(path.parent, name):
            taken = _taken(line, path.parent.parent / "work", workdir)
            found.setdefault(repr(taken), taken)
    return tuple(found.values())


def _taken(line: dict[str, Any], copy: Path, workdir: Path) -> Taken:
    site = line.get("site") or {"frames": [], "inside": None}
    frames = tuple(
        Frame(
            file=_in_workdir(each["file"], copy, workdir),
            line=each["line"],
            function=each["function"],
            span=tuple(each["span"]) if each["span"] is not None else None,
            sha256=each["sha256"],
            direct=each["direct"],
        )
        for each in site["frames"]
    )
    return Taken(line["applied"], line["what"], frames, site["inside"], line.get("facts", {}))


def _in_workdir(file: str, copy: Path, workdir: Path) -> str:
    """Relative where it lies in the working directory or in a copy of it."""
    path = Path(file)
    for root in (copy, copy.resolve(), workdir, workdir.resolve()):
        if path.is_absolute() and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return file
