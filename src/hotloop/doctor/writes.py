"""What trials tried to write outside of their copies of the working directory."""

from __future__ import annotations

from pathlib import Path

from hotloop.core.child import OUTSIDE_FILE
from hotloop.core.errors import UsageError
from hotloop.core.untrusted import object_lines


class WritesOutside(Exception):
    """A fix made it try to write where other trials, or the user, would see it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def outside_path(place: Path) -> str | None:
    """The first path outside that a run in `place` wanted to write."""
    path = place / "run" / OUTSIDE_FILE
    if not path.exists():
        return None
    entries = (entry for _, entry in object_lines(path))
    # A process that was killed while it wrote leaves half a line.
    return next((str(each["path"]) for each in entries if isinstance(each, dict)), None)


def refuse_writes(session: Path, baseline: str) -> None:
    """Check all pairs of a session: raises `UsageError` where the baseline wrote outside, else `WritesOutside`."""
    wrote = None
    for place in sorted(session.glob("pair-*")):
        path = outside_path(place)
        if path is not None and place.name.endswith(f"-{baseline}"):
            raise refused_outside(path)
        wrote = wrote or path
    if wrote is not None:
        raise WritesOutside(wrote)


def refused_outside(path: str) -> UsageError:
    return UsageError(
        "the command writes outside its working directory, where every trial would write again",
        where=path,
        do="give it a path inside that directory, or allow it with --in-place; nothing was written there",
    )
