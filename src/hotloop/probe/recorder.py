"""Writes `steps.jsonl` of hotloop's own trainer: one line per step, once its late values are known."""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.step import StepRecord, read_steps
from hotloop.core.untrusted import MAX_LINES_BYTES, parse_object, read_bytes
from hotloop.probe.machine import host_peak_bytes
from hotloop.probe.phases import PhaseClock

Observer = Callable[[StepRecord], None]
"""Called after a record is closed; cannot touch training."""


class Recorder:
    """Appends records to a file and shows them to observers. Raises `EnvironmentFailed` on a full disk."""

    def __init__(self, path: Path, observers: tuple[Observer, ...] = ()) -> None:
        self._path = path
        self._observers = observers
        try:
            self._file: IO[bytes] = path.open("ab", buffering=0)
        except OSError as error:
            raise self._refused(error) from error

    def write(self, record: StepRecord) -> None:
        try:
            self._file.write(record.to_json().encode() + b"\n")
        except OSError as error:
            raise self._refused(
                error,
                do="free some space, then run the same command again: it continues from the last checkpoint",
            ) from error
        for observer in self._observers:
            observer(record)

    def flush(self) -> None:
        """Make what was written durable. Raises `EnvironmentFailed` when the disk refuses."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError, *, do: str | None = None) -> EnvironmentFailed:
        what = f"cannot write step records: {error.strerror}"
        return EnvironmentFailed(what, where=str(self._path), do=do)

    def close(self) -> None:
        self._file.close()


def newest_steps(path: Path) -> Iterator[StepRecord]:
    """The records of a file, newest first; none where there is no file. Damaged lines are passed over.

    For a look at the end of a long file: only what is asked for is parsed.
    """
    try:
        lines = read_bytes(path, limit_bytes=MAX_LINES_BYTES).split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read step records: {error.strerror}", where=str(path)) from error
    for line in reversed(lines):
        try:
            yield StepRecord.from_mapping(parse_object(line))
        except (ValueError, TypeError):
            continue


def keep_steps_before(path: Path, step: int) -> None:
    """Drop the records of `step` and later ones: a resumed run writes them again.

    The steps after the last checkpoint were lost with the process that made them.
    """
    if not path.exists():
        return
    kept = [record for record in read_steps(path) if record.step < step]
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        for record in kept:
            file.write(record.to_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class LateValues:
    """A queue of named scalars per step.

    On an accelerator each step's scalars are copied to pinned memory without blocking and handed out
    once their event has passed. On a CPU a read is free and they are ready at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waiting: deque[tuple[tuple[str, ...], Tensor, torch.cuda.Event | None]] = deque()

    def push(self, values: dict[str, Tensor]) -> None:
        """Scalars of one step, still on the device."""
        stacked = torch.stack([v.detach().float().reshape(()) for v in values.values()])
        event = None
        if self._device.type == "cuda":
            host = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
            host.copy_(stacked, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            stacked = host
        self._waiting.append((tuple(values), stacked, event))

    def wait_for_all_but(self, newest: int) -> None:
        """Wait until the device has computed the scalars of every step but the `newest` ones."""
        for _, _, event in list(self._waiting)[: len(self._waiting) - newest]:
            if event is not None:
                event.synchronize()

    def pop(self) -> dict[str, float] | None:
        """The oldest step's scalars, waited for if need be; `None` when none were pushed."""
        if not self._waiting:
            return None
        names, host, event = self._waiting.popleft()
        if event is not None:
            event.synchronize()
        return dict(zip(names, host.tolist(), strict=True))


LateTags = Callable[[int, dict[str, float]], tuple[str, ...]]
"""From a step's number and its late values to tags that only they can tell; called once per step, in order."""

PEAK_EVERY_S = 1.0
"""Reading the resident set takes tens of microseconds: too much for every step of a small model."""


class StepBook:
    """Closes one record per step; writes it a step late, when its values have arrived."""

    def __init__(
        self,
        recorder: Recorder,
        clock: PhaseClock,
        device: torch.device,
        late_tags: LateTags = lambda step, values: (),
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._late_tags = late_tags
        self._device = device
        self._late = LateValues(device)
        self._open: deque[StepRecord] = deque()
        self._tags: list[str] = []
        self._peak: int | None = None
        self._peak_read_at = float("-inf")

    def __enter__(self) -> StepBook:
        gc.callbacks.append(self._saw_collection)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._saw_collection)
        self._recorder.close()

    def tag(self, name: str) -> None:
        """Mark the step that is running."""
        if name not in self._tags:
            self._tags.append(name)

    def note(self, values: dict[str, Tensor]) -> None:
        """Scalars of the running step, still on the device: `loss`, `grad_norm`, and what `late_tags` reads."""
        self._late.push(values)

    def close(self, *, step: int, tokens: int, samples: int, learning_rate: float) -> None:
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
        self._late.wait_for_all_but(0 if for_last else 1)

    def write_closed(self) -> dict[str, float] | None:
        """Write the records of all closed steps; returns the newest values that were noted."""
        newest = None
        while self._open and (values := self._late.pop()) is not None:
            newest = values
            record = self._open.popleft()
            self._recorder.write(
                replace(
                    record,
                    loss=values["loss"],
                    grad_norm=values.get("grad_norm"),
                    tags=record.tags + self._late_tags(record.step, values),
                )
            )
        return newest

    def flush(self) -> None:
        """Make the written records durable."""
        self._recorder.flush()

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
