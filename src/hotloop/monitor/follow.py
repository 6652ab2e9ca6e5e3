"""Follows a run that another process writes: new lines of `steps.jsonl`, and whether it lives."""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

from hotloop.core.file_locks import LOCK, is_locked
from hotloop.core.files import SESSIONS_FILE, process_space
from hotloop.core.sessions import read_sessions
from hotloop.core.step import StepRecord
from hotloop.core.untrusted import open_regular, parse_object, read_bytes

KEPT_RECORDS = 500
TAIL_BYTES = 1 << 20
"""Bytes that are read from the end of a file that is already long."""
FRESH_S = 3.0
"""A run writes telemetry every second: files younger than this belong to a living process."""


class StepFollower:
    """The newest records of a file that grows, is cut short, is replaced, or is not there yet."""

    def __init__(self, path: Path) -> None:
        self.records: deque[StepRecord] = deque(maxlen=KEPT_RECORDS)
        self.num_damaged = 0
        """Lines that were no records; a line still being written is not one of them."""
        self.path = path
        self._file_id: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""
        self._skip_first = False

    def poll(self) -> None:
        """Take up what was written since."""
        try:
            with open_regular(self.path) as file:
                status = os.fstat(file.fileno())
                file_id = (status.st_dev, status.st_ino)
                if file_id != self._file_id or status.st_size < self._offset:
                    self._begin(file_id, status.st_size)
                file.seek(self._offset)
                new = file.read()
        except OSError:  # not there yet, or gone
            return
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        if self._skip_first and lines:
            lines, self._skip_first = lines[1:], False
        for line in lines:
            if line.strip():
                self._take(line)

    def _begin(self, file_id: tuple[int, int], size: int) -> None:
        self._file_id = file_id
        self._offset = max(0, size - TAIL_BYTES)
        self._skip_first = self._offset > 0  # it starts somewhere inside a line
        self._rest = b""
        self.records.clear()
        self.num_damaged = 0

    def _take(self, line: bytes) -> None:
        try:
            record = StepRecord.from_mapping(parse_object(line))
            if not isinstance(record.tokens, int | None):
                raise ValueError("`tokens` must be an integer")
        except (ValueError, TypeError):
            self.num_damaged += 1
            return
        while self.records and self.records[-1].step >= record.step:
            self.records.pop()  # written again after a resume
        self.records.append(record)


def is_complete(directory: Path, done: int, planned: int) -> bool:
    """True if a training ended by itself, at its last step or before it (`eval.patience`): its last weights were saved.

    The census is written after that; it tells where the checkpoints were deleted since.
    """
    if done < planned:
        sessions, _ = read_sessions(directory / SESSIONS_FILE)
        if not sessions or sessions[-1].why != "finished":
            return False
    saved = (directory / "checkpoints").glob(f"step-{min(done, planned):08d}-*/manifest.json")
    return (directory / "census.json").is_file() or any(saved)


def is_alive(directory: Path, names: tuple[str, ...]) -> bool:
    """True if a process trains in `directory`: it holds the lock, or one of the files just grew.

    The lock is looked up, not tried: trying would refuse a training that starts in that moment.
    The kernel lists no locks of other containers: theirs, and a doctor's command, are known by the files.
    """
    lock = directory / LOCK
    if is_locked(lock):
        return True
    try:
        if (space := process_space()) and read_bytes(lock).decode() == space:
            return False
    except (OSError, ValueError):  # not there, or not ours
        pass
    now = time.time()
    for name in names:
        try:
            if now - (directory / name).stat().st_mtime < FRESH_S:
                return True
        except OSError:
            continue
    return False
