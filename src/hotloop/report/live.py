"""One line about a training that runs, short enough for a terminal of 80 columns."""

from __future__ import annotations

from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.report import numbers


def live_line(
    *,
    step: int,
    total: int,
    tokens_per_s: float | None = None,
    loss: float | None = None,
    mfu: float | None = None,
    sample: TelemetrySample | None = None,
    cpus: float | None = None,
    gpu: GpuSample | None = None,
) -> str:
    """`612/1000  5,290 tokens/s  loss 3.212  MFU 51 %  cpu 98 %  mem 1.0 GB`; unknown parts are left out.

    `cpus` is how many this process may use: `cpu` is its share of them. With a `gpu`, that one's busy
    time, power and memory stand in the place of the host's.
    """
    parts = [f"{step}/{total}"]
    if tokens_per_s is not None:
        parts.append(f"{tokens_per_s:,.0f} tokens/s")
    if loss is not None:
        parts.append(f"loss {loss:.3f}")
    if mfu is not None:
        parts.append(f"MFU {numbers.percent(mfu)}")
    parts.extend(_host(sample, cpus) if gpu is None else _gpu(gpu))
    return "  ".join(parts)


def _host(sample: TelemetrySample | None, cpus: float | None) -> list[str]:
    parts = []
    if sample is not None and sample.process_cpus is not None and cpus:
        parts.append(f"cpu {numbers.percent(sample.process_cpus / cpus)}")
    if sample is not None and sample.process_bytes is not None:
        parts.append(f"mem {numbers.size(sample.process_bytes)}")
    return parts


def _gpu(gpu: GpuSample) -> list[str]:
    parts = []
    if gpu.busy_fraction is not None:
        parts.append(f"gpu {numbers.percent(gpu.busy_fraction)}")
    if gpu.power_w is not None:
        parts.append(f"{gpu.power_w:.0f} W")
    if gpu.memory_bytes is not None:
        parts.append(numbers.size(gpu.memory_bytes))
    return parts
