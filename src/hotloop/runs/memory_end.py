"""Whether a stored run ended for its memory; and a training that ends for it says where that went."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop.core.command_run import CommandRun
from hotloop.core.errors import EnvironmentFailed, HotloopError
from hotloop.core.files import SESSIONS_FILE
from hotloop.core.measurement import Measurement
from hotloop.core.memory_use import MemoryNote, OutOfMemory, memory_refusal, read_memory_notes
from hotloop.core.sessions import read_sessions
from hotloop.core.settings import Settings, load_stored
from hotloop.core.telemetry import TelemetrySample
from hotloop.hardware.limits import memory_kills
from hotloop.judge.memory import (
    killed_for_memory,
    out_of_memory,
    used_fraction,
    ways_of_config,
    ways_of_script,
)
from hotloop.report.memory import out_of_memory_answer, render_out_of_memory


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


@contextmanager
def memory_told(
    directory: Path,
    settings: Settings[Any],
    note: Callable[[str], None],
    *,
    rank: int = 0,
    asked: Sequence[str] = (),
) -> Iterator[None]:
    """Around a training there. asked: words of `hotloop fit` for it, where that takes its config.

    `note` is told of a process before it that was killed for its memory. An error for memory becomes an `EnvironmentFailed` that
    says where it went.
    """
    name, began = f"memory-{rank}.json", time.time()
    before = training_out_of_memory(directory, read_memory_notes(directory, name), settings, ())
    if before is not None and before.certainty != "said":
        note(f"the process before this one: {out_of_memory_answer(before)}")
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        said = memory_refusal(error)
        if said is None or isinstance(error, HotloopError):
            raise
        notes = [each for each in read_memory_notes(directory, name) if each.at >= began]
        on = "cuda" if "CUDA" in str(said) else "cpu"
        last = notes[0] if notes else MemoryNote(os.getpid(), began, device=on)  # it had not begun
        failed = last.failed or f"{type(said).__name__}: {said}".split("\n")[0][:400]
        own = directory / "config.yaml"  # in which nothing is `auto`
        settings = load_stored(own) if notes and own.exists() else settings
        found = training_out_of_memory(directory, [replace(last, failed=failed)], settings, ())
        assert found is not None, "it was said"
        told = render_out_of_memory(found).split("\n")
        if asked:
            limit = [] if found.limit_bytes is None else ["--memory", f"{found.limit_bytes // 10**6}M"]  # fmt: skip
            command = shlex.join(["hotloop", "fit", *asked, *limit, "--prove"])
            told += [
                "",
                f"which of these is predicted to be enough, and proof of the cheapest: `{command}`",
            ]
        told = [f"  {line}" if line and number else line for number, line in enumerate(told)]
        raise EnvironmentFailed(
            "out of memory", where=str(directory), do="\n".join(told)
        ) from error
