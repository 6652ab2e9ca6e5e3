"""The processes of a training, one after the other, as `sessions.jsonl` tells of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.core.untrusted import object_lines


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """What `checkpoint.every_steps: auto` chose, and why."""

    steps: int
    longest_steps: int
    """The most that it has chosen in this run."""
    save_s: float
    """What a save costs the steps: how long it holds them up, and by how much it slows those beside it."""
    interruptions_per_day: float


@dataclass(frozen=True, slots=True)
class Session:
    """One process of a training. Times are seconds since the epoch."""

    process_at: float
    """When it was started."""
    at: float
    """When it knew from which step it continues."""
    from_step: int
    made_s: float
    """How long the steps took that the one before it made; the last to come to a step, where that one did not."""
    lost_s: float
    """Those of them that are made again now."""
    lost_steps: int
    first_step_at: float | None = None
    """When its first step began; `None`: it came to none."""
    rolled_back_s: float = 0.0
    """How long the steps took that going back from spikes undid."""
    ended_at: float | None = None
    """`None`: it was killed, or still trains."""
    why: str | None = None
    """`finished`, or the kind of error that ended it."""
    interval: SaveInterval | None = None
    """The newest that was chosen."""
    host: dict[str, float] = field(default_factory=dict)
    """Seconds per phase after its last step: the last evaluation and save."""


def read_sessions(path: Path) -> tuple[list[Session], dict[int, str]]:
    """The sessions, and what is wrong with lines that are left out, by number. Raises `OSError`."""
    from hotloop.core.files import (
        validated,  # needs pydantic, which a foreign interpreter may not have
    )

    found: list[dict[str, Any]] = []
    damaged: dict[int, str] = {}
    for number, line in object_lines(path) if path.is_file() else ():
        if isinstance(line, dict) and ("process_at" in line or found):
            try:
                if "process_at" in line:
                    found.append({})
                elif "rolled_back_s" in line:
                    line["rolled_back_s"] += found[-1].get("rolled_back_s", 0.0)
                validated(Session, {**found[-1], **line})
                found[-1] |= line
                continue
            except (ValueError, TypeError) as error:
                damaged[number] = str(error)
        else:
            damaged[number] = line if isinstance(line, str) else "it belongs to no process"
    return [validated(Session, each) for each in found if each], damaged
