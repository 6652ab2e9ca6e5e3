"""What machine and process did while a run trained, second by second: `telemetry.jsonl`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotloop.core.files import validated
from hotloop.core.untrusted import open_regular, parse_object

TELEMETRY_FILE = "telemetry.jsonl"


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU, as NVML shows it. `None` means this GPU does not tell."""

    index: int
    """NVML's number: unlike CUDA's it ignores CUDA_VISIBLE_DEVICES."""
    name: str | None = None
    uuid: str | None = None
    busy_fraction: float | None = None
    """Share of the last sample period in which any kernel ran, on however few of its units."""
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttled_by: tuple[str, ...] = ()
    """Why the clocks are lower than they could be: `power_cap`, `thermal_slowdown`, ..."""


@dataclass(frozen=True, slots=True)
class TelemetrySample:
    """One second. Rates and CPU shares are means since the sample before; the first has none."""

    sampled_at: float
    """Seconds since the epoch."""
    process_cpus: float | None = None
    """CPUs that this process kept busy: 2.0 is two of them, all the time."""
    process_bytes: int | None = None
    """Resident set of this process."""
    cpu_fraction: float | None = None
    """Busy share of the machine's CPUs, all processes."""
    iowait_fraction: float | None = None
    """Share in which CPUs idled while a disk was waited for."""
    steal_fraction: float | None = None
    """Share that the hypervisor gave to other guests."""
    memory_bytes: int | None = None
    """Used on the machine; not what could be given back at once."""
    memory_total_bytes: int | None = None
    group_bytes: int | None = None
    """Used by this process's control group, file cache included."""
    memory_limit_bytes: int | None = None
    """What this process may use: its control group's limit, or the machine's memory."""
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    """All disks of the machine, all processes."""
    gpus: tuple[GpuSample, ...] = ()
    sampler_s: float | None = None
    """CPU seconds that sampling has cost so far, this sample included."""
    sampler_fraction: float | None = None
    """`sampler_s` over the wall seconds since sampling began: the share of one core it costs."""

    def to_json(self) -> str:
        """One line, without what is not known."""
        values = _known(asdict(self))
        values["gpus"] = [_known(gpu) for gpu in values.get("gpus", ())]
        return json.dumps(_known(values), separators=(",", ":"))

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> TelemetrySample:
        """Unknown fields are left out: a newer hotloop may have written them. Raises `ValueError`."""
        try:
            sample = validated(cls, values)
            for each in (values, *values.get("gpus", ())):
                # A sum of larger ones would overflow.
                if any(isinstance(v, int | float) and not abs(v) < 1e300 for v in each.values()):
                    raise ValueError("a number is too large")
            return sample
        except ValueError as error:
            raise ValueError(f"damaged telemetry: {error}") from error


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not None and v not in ((), [], {})}


def read_telemetry(
    path: Path, *, tail_bytes: int | None = None
) -> tuple[list[TelemetrySample], dict[int, str]]:
    """The samples, oldest first, and what is wrong with each damaged line, by its number in what was read; no file is no
    samples.

    `tail_bytes` reads only the end of the file. A last line without its end is still being written,
    or was when the process was killed: it is left out and not counted.
    """
    samples: list[TelemetrySample] = []
    damaged: dict[int, str] = {}
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            start = 0 if tail_bytes is None else max(0, size - tail_bytes)
            file.seek(start)
            *lines, _ = file.read().split(b"\n")
    except OSError:
        return samples, damaged
    for number, line in enumerate(lines, 1):
        if not line.strip() or (start and number == 1):  # that one starts somewhere inside
            continue
        try:
            samples.append(TelemetrySample.from_mapping(parse_object(line)))
        except ValueError as error:
            damaged[number] = str(error)
    return samples, damaged
