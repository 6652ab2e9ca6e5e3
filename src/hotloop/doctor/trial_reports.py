"""What the processes of trials wrote down: where fixes took effect, what harm they did, what went on and off, what they
would have written outside of their copies of the working directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hotloop.core.child import APPLIED_FILE, OUTSIDE_FILE, TOGGLES_FILE
from hotloop.core.errors import UsageError
from hotloop.core.measurement import Measurement
from hotloop.core.untrusted import object_lines
from hotloop.doctor.directory import mapping_of
from hotloop.doctor.fixes import Fix

BUSY_WORKERS = 0.25
"""Workers that make batches in no more than this share of their time keep the pace of a much faster step."""


class WritesOutside(Exception):
    """A fix made it try to write where other trials, or the user, would see it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


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
            return refused or "it found nothing that it could act on"
    for measurement in measurements:
        census = measurement.census
        if census is not None and fix.technique.observed(census, fix.value) is False:
            place = next((f"{line['what']}: " for found in lines for line in found), "")
            return f"{place}{fix.technique.unobserved}"
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
    return [entry for entry in _lines(run / APPLIED_FILE) if entry.get("fix") == name]


def _lines(path: Path) -> list[dict[str, Any]]:
    """Without the half line of a process that was killed while it wrote."""
    entries = (entry for _, entry in object_lines(path)) if path.exists() else ()
    return [entry for entry in entries if isinstance(entry, dict)]


def most_children(measurement: Measurement) -> int | None:
    """How many workers of loaders the command may have; `None` where batches may be made ahead of steps.

    Who keeps a queue of batches lets a fast step take what was made during slow ones: it would look faster
    than it could stay. Without workers a batch is made when it is asked for, and workers that are mostly
    idle have the queue full at every step.
    """
    census = measurement.census
    counted = measurement.counted()
    if census is None or not counted or "loaders" not in census.seen:
        return None
    step_s = median(record.wall_s for record in counted)
    for loader in census.loaders:
        if not loader.num_workers:
            continue
        if loader.fetch_s is None:
            return None
        batches = loader.num_batches / len(counted)
        if loader.fetch_s * batches > BUSY_WORKERS * loader.num_workers * step_s:
            return None
    return sum(loader.num_workers for loader in census.loaders)


def can_be_toggled(run: Path, children: int | None) -> frozenset[str]:
    """Techniques that a process said it could turn, where nothing in it makes batches unseen.

    run: what that process wrote into. children: as many processes as its loaders may have, see `most_children`.
    """
    said = mapping_of(run / TOGGLES_FILE)
    if children is None or said.get("threads") or said.get("children", 1) > children:
        return frozenset()
    return frozenset(said.get("can", ()))


def reason_not_toggled(name: str, runs: list[Path]) -> str | None:
    """Why technique `name` was not on and off in each of these processes; `None`: it was."""
    if all(name in mapping_of(run / TOGGLES_FILE).get("turned", ()) for run in runs):
        return None
    return "it was to go on and off within the process, and did not"


def outside_path(place: Path) -> str | None:
    """The first path outside that a run in `place` wanted to write."""
    return next((str(each["path"]) for each in _lines(place / "run" / OUTSIDE_FILE)), None)


def raise_outside(place: Path) -> None:
    if (path := outside_path(place)) is not None:
        raise WritesOutside(path)


def refuse_writes(session: Path, baseline: str) -> None:
    """Check all pairs of a session: raises `UsageError` where the baseline wrote outside, else `WritesOutside`."""
    for place in sorted(session.glob(f"pair-*-{baseline}")):
        if (path := outside_path(place)) is not None:
            raise refused_outside(path)
    for place in sorted(session.glob("pair-*")):
        raise_outside(place)


def refused_outside(path: str) -> UsageError:
    return UsageError(
        "the command writes outside its working directory, where every trial would write again",
        where=path,
        do="give it a path inside that directory, or allow it with --in-place; nothing was written there",
    )
