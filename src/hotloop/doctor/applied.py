"""Checks that a technique took effect in the processes that it was put into, and did nothing else there."""

from __future__ import annotations

from collections.abc import Sequence
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
