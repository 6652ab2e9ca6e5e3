"""What the doctor's telemetry adds to a census: how much other programs took, how long a GPU was held down."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from hotloop.core.census import Census
from hotloop.core.telemetry import GpuSample, TelemetrySample

FEWEST_SAMPLES = 3
"""Seconds of telemetry below which nothing is said."""
FEWEST_GPU_SAMPLES = 10
"""The same of a GPU."""


def with_foreign_load(
    census: Census, samples: Sequence[TelemetrySample], *, num_cpus: int | None = None
) -> Census:
    """The census with what the machine's CPUs did after the first step; unchanged without telemetry.

    `num_cpus`: all of the machine, whether or not this process may use them.
    """
    num_cpus = num_cpus or os.cpu_count()
    if not samples or census.cpu_busy is None or not num_cpus:
        return census
    since = samples[0].sampled_at + (census.start_s or 0.0)
    busy = [
        each.cpu_fraction
        for each in samples
        if each.sampled_at >= since and each.cpu_fraction is not None
    ]
    if len(busy) < FEWEST_SAMPLES:
        return census
    mean = min(fmean(busy), 1.0)
    return replace(
        census,
        machine_busy=mean,
        foreign_busy=max(mean - census.cpu_busy / num_cpus, 0.0),
    )


def with_throttling(census: Census, samples: Sequence[TelemetrySample]) -> Census:
    """The census with what NVML said of its GPU; unchanged where it said too little.

    Only seconds in which the GPU computed count: an idle one lowers its clock by itself.
    """
    seen = [_gpu(census, sample) for sample in samples]
    busy = [gpu for gpu in seen if gpu is not None and (gpu.busy_fraction or 0.0) > 0.0]
    if len(busy) < FEWEST_GPU_SAMPLES:
        return census
    held = [gpu for gpu in busy if gpu.throttled_by]
    clocks = [gpu.sm_clock_mhz for gpu in held if gpu.sm_clock_mhz]
    free = [gpu.sm_clock_mhz for gpu in busy if gpu not in held and gpu.sm_clock_mhz]
    drop = None
    if clocks and free:
        drop = max(1 - median(clocks) / median(free), 0.0)
    return replace(
        census,
        throttled_fraction=len(held) / len(busy),
        throttled_by=tuple(sorted({why for gpu in held for why in gpu.throttled_by})),
        clock_drop_fraction=drop,
    )


def _gpu(census: Census, sample: TelemetrySample) -> GpuSample | None:
    """The GPU that the process computed on; by its unique id only, numbers differ between tools."""
    if census.device_uuid is None:
        return None
    for gpu in sample.gpus:
        if gpu.uuid is not None and census.device_uuid.removeprefix("GPU-") in gpu.uuid:
            return gpu
    return None
