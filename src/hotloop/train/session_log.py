"""Writes `sessions.jsonl`: when each process of a run started, made its first step and ended, and what it made again.

Lines are added and never changed. A process that is killed leaves no end: the next one says how long it trained.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil

from hotloop.core.files import SESSIONS_FILE, append_line
from hotloop.core.sessions import SaveInterval, read_sessions
from hotloop.probe.phases import PhaseClock
from hotloop.probe.recorder import newest_steps


class SessionLog:
    """What this process says of itself. All methods raise `EnvironmentFailed` where the disk refuses."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / SESSIONS_FILE
        self._clock: PhaseClock | None = None

    def started(self, first_step: int, steps_file: Path) -> None:
        """Before records of steps that will be made again are dropped."""
        trained = [s for s in read_sessions(self._path)[0] if s.first_step_at is not None]
        before = trained[-1].from_step if trained else 0
        seconds = {record.step: record.wall_s for record in newest_steps(steps_file)}
        lost = [s for step, s in seconds.items() if step >= first_step]
        self._add(
            process_at=psutil.Process().create_time(),
            at=time.time(),
            from_step=first_step,
            made_s=math.fsum(s for step, s in seconds.items() if step >= before),
            lost_s=math.fsum(lost),
            lost_steps=len(lost),
        )

    def training(self, clock: PhaseClock) -> None:
        """Its first step begins now, by this clock; or the first one after going back from a spike."""
        if self._clock is None:
            self._add(first_step_at=time.time())
        self._clock = clock

    def rolled_back(self, seconds: float) -> None:
        """Steps that took so long were made for nothing, and their records are dropped."""
        self._add(rolled_back_s=seconds)

    def interval(self, chosen: SaveInterval) -> None:
        """Written before it takes effect."""
        self._add(interval=asdict(chosen))

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """Until the training ends, however it does; a process that is killed says nothing."""
        why = "finished"
        try:
            yield
        except BaseException as error:
            why = type(error).__name__
            raise
        finally:
            # What came after the last step belongs to no record.
            host = self._clock.cut_step()[1] if self._clock is not None else {}
            self._add(ended_at=time.time(), why=why, host=host)

    def _add(self, **values: object) -> None:
        append_line(self._path, values, "record the process")
