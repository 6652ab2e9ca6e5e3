"""What process and machine were seen to do while a run made its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hotloop.core.measurement import Measurement
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.judge.attribute import STARTING_UP
from hotloop.judge.exposure import runs_on_cpu

MIN_SAMPLES = 3
"""Telemetry comes once a second: fewer samples than this describe the start and the end of a run."""


def while_training(
    samples: Sequence[TelemetrySample], records: Sequence[StepRecord]
) -> tuple[TelemetrySample, ...]:
    """The samples taken while the newest process made steps, without its start and its compiling.

    Steps carry no time of day, so their seconds are counted back from the last sample.
    """
    if not samples or not records:
        return ()
    first = max((i for i, r in enumerate(records) if "resumed" in r.tags), default=0)
    while first < len(records) and STARTING_UP & set(records[first].tags):
        first += 1
    seconds = math.fsum(r.wall_s for r in records[first:])
    # Each sample is about the second before it.
    since = max(s.sampled_at for s in samples) - seconds + 1.0
    return tuple(s for s in samples if s.sampled_at >= since)


class Use:
    """What the machine was seen to do for a run."""

    def __init__(
        self,
        measurement: Measurement | None,
        training: Sequence[TelemetrySample],
        everything: Sequence[TelemetrySample],
    ) -> None:
        self.training = training
        self.everything = everything
        self.measurement = measurement
        self.on_cpu = measurement is not None and runs_on_cpu(measurement)
        self.why_none = (
            f"the steps took too few seconds: {len(training)} telemetry samples"
            if everything
            else "no telemetry was written"
        )

    def mean(self, name: str) -> float | None:
        """Over the samples while training; `None` for too few."""
        values = [v for s in self.training if (v := finite(getattr(s, name))) is not None]
        return math.fsum(values) / len(values) if len(values) >= MIN_SAMPLES else None

    def gpu(self) -> tuple[int | None, str]:
        """NVML's number of the GPU that trained, or why nothing can be said of it."""
        if self.measurement is None or not self.measurement.records:
            return None, "no step was recorded"
        if self.on_cpu:
            return None, "no GPU: this ran on a CPU"
        seen = {gpu.index: gpu.uuid for sample in self.everything for gpu in sample.gpus}
        if not self.everything:
            return None, self.why_none
        if not seen:
            return None, "no GPU in the telemetry: it needs an NVIDIA driver and hotloop[gpu]"
        if len(seen) == 1:
            return next(iter(seen)), ""
        census = self.measurement.census
        trained = census.device_uuid if census is not None else None
        for index, uuid in seen.items():
            if trained is not None and uuid is not None and uuid.lower() == trained.lower():
                return index, ""
        return None, f"the telemetry shows {len(seen)} GPUs and not which of them trained"


def of_gpu(index: int, samples: Sequence[TelemetrySample]) -> list[GpuSample]:
    return [gpu for sample in samples for gpu in sample.gpus if gpu.index == index]


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
