"""Which fixes may go on and off within one process, where that says what they bring."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from hotloop.core.child import TOGGLES_FILE
from hotloop.core.measurement import Measurement

BUSY_WORKERS = 0.25
"""Workers that make batches in no more than this share of their time keep the pace of a much faster step."""


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
    said = _said(run)
    if children is None or said.get("threads") or said.get("children", 1) > children:
        return frozenset()
    return frozenset(said.get("can", ()))


def reason_not_toggled(name: str, runs: list[Path]) -> str | None:
    """Why technique `name` was not on and off in each of these processes; `None`: it was."""
    if all(name in _said(run).get("turned", ()) for run in runs):
        return None
    return "it was to go on and off within the process, and did not"


def _said(run: Path) -> dict[str, Any]:
    try:
        said = json.loads((run / TOGGLES_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it ended before
        return {}
    return said if isinstance(said, dict) else {}
