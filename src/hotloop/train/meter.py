"""What the progress line of a training says: an observer of its records."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from hotloop.core.ceilings import PRECISION_DTYPES
from hotloop.core.measurement import Environment
from hotloop.core.progress import Progress
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.hardware.device import gpu_uuid
from hotloop.hardware.environment import stored_ceilings
from hotloop.hardware.telemetry import Newest
from hotloop.models.shape import flops_per_token
from hotloop.report import numbers
from hotloop.train.run import Run

SHOW_EVERY_S = 0.2
WINDOW = 20
"""Newest steps whose median rate is shown."""


@dataclass(frozen=True, slots=True)
class Live:
    """What the line is made of beside the records; `None` leaves a part of it out."""

    newest: Newest = lambda: None
    cpus: float | None = None
    """CPUs that this process may use: its part of the quota."""
    mfu_per_token: float | None = None
    """FLOPs of a token by the PaLM convention over the measured peak: times tokens/s it is the MFU."""
    gpu: str | None = None
    """NVML's name of the GPU that trains."""


def live_of(run: Run, environment: Environment, newest: Newest) -> Live:
    """For a run that is built. There is no MFU where the machine's ceilings were not measured."""
    config = run.config
    assert isinstance(config.train.num_threads, int), "auto is resolved before training"
    ceilings = stored_ceilings(environment, config.train.num_threads)
    dtype = PRECISION_DTYPES.get(config.train.precision)
    peak = ceilings.of(dtype) if ceilings is not None and dtype is not None else None
    flops = None if run.shape is None else flops_per_token(run.shape)
    devices = run.group.ranks.num_ranks
    if devices > 1 and run.device.type == "cpu":
        peak = None  # measured for one process, and processes on one machine share its memory
    return Live(
        newest=newest,
        cpus=environment.cpu_quota / run.group.ranks.num_local_ranks,
        mfu_per_token=None
        if peak is None or flops is None
        else flops / (devices * peak.flops_per_s),
        gpu=gpu_uuid(run.device),
    )


class Meter:
    """Keeps the rate and shows it, at most five times a second."""

    def __init__(self, progress: Progress, *, total: int, live: Live | None = None) -> None:
        self._progress = progress
        self._total = total
        self._live = live or Live()
        self._shown_at = 0.0
        self._rates: list[float] = []
        self._unit = "tokens"
        self._starts_at = self._newest = 0

    def __call__(self, record: StepRecord) -> None:
        work = record.samples if record.tokens is None else record.tokens
        self._unit = "samples" if record.tokens is None else "tokens"
        if work and record.wall_s > 0 and not record.tags:
            self._rates.append(work / record.wall_s)
            self._starts_at = self._starts_at if len(self._rates) > 1 else record.step
        self._newest = record.step
        now = time.monotonic()
        if now - self._shown_at < SHOW_EVERY_S and record.step + 1 < self._total:
            return
        self._shown_at = now
        self._progress("training", record.step + 1, self._total, self._line(record))

    def tokens_per_s(self) -> float | None:
        """Median over the steady steps; `None` where tokens are not counted."""
        if self._unit != "tokens":
            return None
        return self._median(len(self._rates))

    def _median(self, newest: int) -> float | None:
        if len(self._rates) == 1 and self._starts_at == 0 < self._newest:
            # Of the very first step alone, which warms up: nothing steady was seen since.
            return None
        return statistics.median(self._rates[-newest:]) if self._rates else None

    def _line(self, record: StepRecord) -> str:
        """`612/1000  5,290 tokens/s  loss 3.212  MFU 51 %  cpu 98 %  mem 1.0 GB`, without what is not known.

        Short enough for a terminal of 80 columns. Where a GPU trains, its busy time, power and memory stand in
        the place of the host's.
        """
        live = self._live
        sample = live.newest() or TelemetrySample(0.0)
        rate = self._median(WINDOW)
        parts = [f"{record.step + 1}/{self._total}"]
        if rate is not None:
            parts.append(f"{rate:,.0f} {self._unit}/s")
        if record.loss is not None:
            parts.append(f"loss {record.loss:.3f}")
        if rate is not None and live.mfu_per_token is not None:
            parts.append(f"MFU {numbers.percent(rate * live.mfu_per_token)}")
        own = (live.gpu or "").lower()
        for gpu in sample.gpus:
            if own and (gpu.uuid or "").lower() == own:
                return "  ".join(parts + _gpu_parts(gpu))
        if sample.process_cpus is not None and live.cpus:
            parts.append(f"cpu {numbers.percent(sample.process_cpus / live.cpus)}")
        if sample.process_bytes is not None:
            parts.append(f"mem {numbers.size(sample.process_bytes)}")
        return "  ".join(parts)


def _gpu_parts(gpu: GpuSample) -> list[str]:
    parts = []
    if gpu.busy_fraction is not None:
        parts.append(f"gpu {numbers.percent(gpu.busy_fraction)}")
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:.0f} W")
    if gpu.memory_bytes is not None:
        parts.append(numbers.size(gpu.memory_bytes))
    return parts
