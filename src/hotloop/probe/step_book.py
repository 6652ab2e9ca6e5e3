"""Turns the loop's clock and late values into StepRecords, in order, each written once complete."""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import replace

import torch
from torch import Tensor

from hotloop.core.step import StepRecord
from hotloop.probe.late import LateValues
from hotloop.probe.memory import host_peak_bytes
from hotloop.probe.phases import PhaseClock
from hotloop.probe.recorder import Recorder


class StepBook:
    """Closes one record per step; writes it when the step's late values have arrived."""

    def __init__(self, recorder: Recorder, clock: PhaseClock, device: torch.device) -> None:
        self._recorder = recorder
        self._clock = clock
        self._device = device
        self._late = LateValues(device)
        self._open: deque[StepRecord] = deque()
        self._tags: list[str] = []

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
        """Scalars of the running step, still on the device: `loss`, `grad_norm`."""
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

    def write_ready(self, *, wait: bool = False) -> float | None:
        """Write the records whose values have arrived (all of them with `wait`).

        Returns the newest loss that became known, if any.
        """
        newest = None
        while self._open and (values := self._late.pop(wait=wait)) is not None:
            newest = values["loss"]
            self._recorder.write(
                replace(self._open.popleft(), loss=newest, grad_norm=values.get("grad_norm"))
            )
        return newest

    def _peak_bytes(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return host_peak_bytes()

    def _saw_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            self.tag("gc")
