"""Whether a stored run ended for its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotloop.core.command_run import CommandRun
from hotloop.core.files import SESSIONS_FILE
from hotloop.core.measurement import Measurement
from hotloop.core.memory_use import MemoryNote, OutOfMemory
from hotloop.core.sessions import read_sessions
from hotloop.core.settings import Settings
from hotloop.core.telemetry import TelemetrySample
from hotloop.hardware.limits import memory_kills
from hotloop.judge.memory import (
    killed_for_memory,
    out_of_memory,
    used_fraction,
    ways_of_config,
    ways_of_script,
)


def command_out_of_memory(
    notes: Sequence[MemoryNote],
    run: CommandRun,
    measurement: Measurement | None,
    samples: Sequence[TelemetrySample],
) -> OutOfMemory | None:
    """Of somebody else's command."""
    if run.ended != "failed":
        return None
    note = notes[0] if notes else None
    census = measurement.census if measurement is not None else None
    ways = ways_of_script(note, census, samples)
    return out_of_memory(note, killed=run.killed_for_memory, samples=samples, ways=ways)


def training_out_of_memory(
    directory: Path,
    notes: Sequence[MemoryNote],
    settings: Settings[Any],
    samples: Sequence[TelemetrySample],
) -> OutOfMemory | None:
    """Of a training of hotloop's own that stopped, as its last process left it."""
    if not notes:
        return None
    note, killed = notes[0], None
    sessions, _ = read_sessions(directory / SESSIONS_FILE)
    if sessions and sessions[-1].ended_at is None:
        now = memory_kills(None if note.group is None else Path(note.group))
        killed = killed_for_memory(note.kills, now, used_fraction(note, samples))
    ways = ways_of_config(settings.config.flat(), note)
    return out_of_memory(note, killed=killed, samples=samples, ways=ways)
