"""How long a GPU's clock was held down while a command trained, from the doctor's own telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from hotloop.core.census import Census
from hotloop.core.telemetry import GpuSample, TelemetrySample

FEWEST_SAMPLES = 10
"""Seconds of telemetry below which nothing is said."""


def with_throttling(census: Census, samples: Sequence[TelemetrySample]) -> Census:
    """The census with what NVML said of its GPU; unchanged where it said too little.

    Only seconds in which the GPU computed count: an idle one lowers its clock by itself.
    """
    seen = [_gpu(census, sample) for sample in samples]
    busy = [gpu for gpu in seen if gpu is not None and (gpu.busy_fraction or 0.0) > 0.0]
    if len(busy) < FEWEST_SAMPLES:
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
