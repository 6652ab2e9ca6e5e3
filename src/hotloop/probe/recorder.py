"""Writes `steps.jsonl` of hotloop's own trainer: one line per step, once its late values are known."""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import write_atomically
from hotloop.core.step import StepRecord, read_steps
from hotloop.core.untrusted import lines_from_end, parse_object
from hotloop.probe.machine import host_peak_bytes
from hotloop.probe.phases import PhaseClock

Observer = Callable[[StepRecord], None]
"""Called after a record is closed; cannot touch training."""
LateTags = Callable[[int, dict[str, float]], tuple[str, ...]]
"""From a step's number and its late values to tags that only they can tell; called once per step, in order."""

PEAK_EVERY_S = 1.0
"""Reading the resident set takes tens of microseconds: too much for every step of a small model."""


def newest_steps(path: Path) -> Iterator[StepRecord]:
    """The records of a file, newest first; none where there is no file. Damaged lines are passed over.

    For a look at the end of a long file: only what is asked for is read.
    """
    try:
        for line in lines_from_end(path):
            try:
                record = StepRecord.from_mapping(parse_object(line))
            except (ValueError, TypeError):
                continue
            yield record
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read step records: {error.strerror}", where=str(path)) from error


def keep_steps_before(path: Path, step: int) -> None:
    """Drop the records of `step` and later ones: a resumed run writes them again.

    The steps after the last checkpoint were lost with the process that made them.
    """
    if not path.exists():
        return
    kept = BytesIO()  # a list of lines would take several times the file
    for record in read_steps(path) if step else ():
        if record.step < step:
            kept.write(record.to_json().encode() + b"\n")
        # What follows was not flushed: a loss of power may have left a hole in it.
        if record.step >= step - 1:
            break
    write_atomically(path, kept.getvalue())


class StepBook:
    """Closes one record per step; appends it to the file a step late, when its values have arrived.

    On an accelerator each step's scalars are copied to pinned memory without blocking and read once their event
    has passed. On a CPU a read is free. Raises `EnvironmentFailed` where the disk refuses.
    """

    def __init__(
        self,
        path: Path,
        clock: PhaseClock,
        device: torch.device,
        late_tags: LateTags = lambda step, values: (),
        observers: tuple[Observer, ...] = (),
    ) -> None:
        self._path = path
        self._clock = clock
        self._late_tags = late_tags
        self._observers = observers
        self._device = device
        self._late: deque[tuple[tuple[str, ...], Tensor, torch.cuda.Event | None]] = deque()
        self._open: deque[StepRecord] = deque()
        self._tags: list[str] = []
        self._peak: int | None = None
        self._peak_read_at = float("-inf")
        try:
            self._file: IO[bytes] = path.open("ab", buffering=0)
        except OSError as error:
            raise self._refused(error) from error

    def __enter__(self) -> StepBook:
        gc.callbacks.append(self._saw_collection)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._saw_collection)
        self._file.close()

    def tag(self, name: str) -> None:
        """Mark the step that is running."""
        if name not in self._tags:
            self._tags.append(name)

    def note(self, values: dict[str, Tensor]) -> None:
        """Scalars of the running step, still on the device: `loss`, `grad_norm`, and what `late_tags` reads."""
        stacked = torch.stack([v.detach().float().reshape(()) for v in values.values()])
        event = None
        if self._device.type == "cuda":
            host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
            host.copy_(stacked, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            stacked = host
        self._late.append((tuple(values), stacked, event))

    def close(self, *, step: int, tokens: int | None, samples: int, learning_rate: float) -> None:
        """End the step. Call once per step, after `note`, with no phase open."""
        wall_s, seconds, reads = self._clock.end_step()
        self._open.append(
            StepRecord(
                step=step,
                wall_s=wall_s,
                host=seconds,
                tokens=tokens,
                samples=samples,
                learning_rate=learning_rate,
                peak_bytes=self._peak_bytes(),
                clock_reads=reads,
                tags=tuple(self._tags),
            )
        )
        self._tags.clear()

    def wait(self, *, for_last: bool = False) -> None:
        """Wait for the device to finish the step before the one noted last, or that one too.

        So the host is never more than a step ahead, and a step's wall time is the device's as well;
        waiting for the last step itself leaves the device idle while the host catches up.
        """
        due = list(self._late) if for_last else list(self._late)[:-1]
        for _, _, event in due:
            if event is not None:
                event.synchronize()

    def write_closed(self) -> dict[str, float] | None:
        """Write the records of all closed steps; returns the newest values that were noted."""
        newest = None
        while self._open:
            record = self._open.popleft()
            names, host, event = self._late.popleft()
            if event is not None:
                event.synchronize()
            newest = dict(zip(names, host.tolist(), strict=True))
            self._write(
                replace(
                    record,
                    loss=newest["loss"],
                    grad_norm=newest.get("grad_norm"),
                    tags=record.tags + self._late_tags(record.step, newest),
                )
            )
        return newest

    def flush(self) -> None:
        """Make the written records durable."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refused(error) from error

    def _write(self, record: StepRecord) -> None:
        left = memoryview(record.to_json().encode() + b"\n")
        try:
            while left:  # a disk that fills takes a part of it, and refuses only the next write
                left = left[self._file.write(left) :]
        except OSError as error:
            again = "free some space, then run the same command again: it continues from the last checkpoint"
            raise self._refused(error, do=again) from error
        for observer in self._observers:
            observer(record)

    def _refused(self, error: OSError, *, do: str | None = None) -> EnvironmentFailed:
        what = f"cannot write step records: {error.strerror}"
        return EnvironmentFailed(what, where=str(self._path), do=do)

    def _peak_bytes(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        now = time.monotonic()
        if now - self._peak_read_at > PEAK_EVERY_S:
            self._peak, self._peak_read_at = host_peak_bytes(), now
        return self._peak

    def _saw_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            self.tag("gc")
