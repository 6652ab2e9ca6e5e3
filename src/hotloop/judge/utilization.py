"""What a run used of its machine: model FLOP/s and MFU, and what telemetry showed while it made its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hotloop.core.ceilings import Ceilings
from hotloop.core.census import Census
from hotloop.core.judgement import ModelFlops, Utilization
from hotloop.core.measurement import Measurement
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.judge.attribute import STARTING_UP, steady
from hotloop.judge.judged_run import runs_on_cpu


def utilize(
    records: Sequence[StepRecord],
    flops: ModelFlops | None,
    census: Census | None,
    ceilings: Ceilings | None,
) -> Utilization:
    """Utilization over the steady steps, as far as what is known carries.

    `flops_per_s = tokens / seconds * flops_per_token`; MFU is that over the highest rate at which
    this machine was measured to multiply matrices in the dtype that the run was seen to use.
    There is no MFU, and a reason, when that rate or that dtype is not known.
    """
    tokens_per_s = steady_tokens_per_s(records)
    if tokens_per_s is None:
        return Utilization(None, reason="no steady step counts its tokens")
    if flops is None:
        return Utilization(tokens_per_s, reason="the shape of the model is not known")
    palm, causal = flops.matmul + flops.attention, flops.matmul + flops.attention / 2
    dtype, peak, why = _peak(census, ceilings)
    return Utilization(
        tokens_per_s=tokens_per_s,
        palm_flops_per_s=tokens_per_s * palm,
        causal_flops_per_s=tokens_per_s * causal,
        palm_mfu=None if peak is None else tokens_per_s * palm / peak,
        causal_mfu=None if peak is None else tokens_per_s * causal / peak,
        dtype=dtype,
        peak_flops_per_s=peak,
        peak=why if peak is not None else None,
        reason=None if peak is not None else why,
    )


def steady_tokens_per_s(records: Sequence[StepRecord]) -> float | None:
    """Tokens over wall seconds of the steps without a tag; `None` when there are none to count.

    Step 0 is none when it is the only one of several: it warms up, whatever its tags.
    """
    steps = [record for record in steady(records) if record.tokens is not None]
    if len(steps) == 1 < len(records) and steps[0].step == 0:
        return None
    wall = math.fsum(record.wall_s for record in steps)
    if not (math.isfinite(wall) and wall > 0):
        return None
    return sum(record.tokens or 0 for record in steps) / wall


def _peak(census: Census | None, ceilings: Ceilings | None) -> tuple[str | None, float | None, str]:
    """Dtype, its measured peak, and the name of that peak; or no peak and the reason."""
    if census is None or not census.matmul_dtypes:
        return None, None, "the dtype of the matrix products was not observed"
    if len(census.matmul_dtypes) > 1:
        names = ", ".join(census.matmul_dtypes)
        return None, None, f"matrix products in several dtypes have no common ceiling: {names}"
    dtype = census.matmul_dtypes[0]
    num_ranks = census.num_ranks or 1
    if num_ranks > 1 and (census.device or "cpu").startswith("cpu"):
        why = f"{num_ranks} processes trained together, and a CPU's ceiling is measured for one"
        return dtype, None, why
    if ceilings is None:
        threads = ""
        if (census.device or "cpu").startswith("cpu") and census.num_threads is not None:
            threads = f" --threads {census.num_threads}"
        return (
            dtype,
            None,
            f"the ceiling of that machine was not measured: `hotloop env{threads}` there measures it",
        )
    found = ceilings.of(dtype)
    if found is None:
        why = ceilings.not_measured.get(dtype, "`hotloop env --measure` measures it")
        return dtype, None, f"the ceiling in {dtype} was not measured: {why}"
    m, k, n = found.shape
    emulated = "" if found.native else "emulated "
    name = f"{emulated}{dtype} matrix product {m} x {k} x {n}, the fastest measured on that machine"
    if num_ranks > 1:
        name = f"{num_ranks} times the {name}"
    return dtype, num_ranks * found.flops_per_s, name


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
