"""Sums up a run for drawing: places of neighbouring steps or seconds, with nothing smoothed away.

A place keeps the lowest, the median and the highest of its values, so that one slow step in a
million still shows as the edge of a band.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hotloop.core.course import (
    ArmsCourse,
    Curve,
    GpuCourse,
    MachineCourse,
    Pace,
    PairSpeeds,
    StepCourse,
    StepSpan,
)
from hotloop.core.measurement import Measurement
from hotloop.core.step import HOST_PHASES, StepRecord
from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.judge.attribute import steady
from hotloop.judge.runs import Unit, run_times, unit_of

SPANS = 120
CURVE_PLACES = 200
TELEMETRY_PLACES = 150

PAUSE_S = 10.0
"""Samples come every second; a longer silence is a run that was stopped and continued."""

Floats = NDArray[np.float64]

PROCESS_AND_MACHINE = (
    "process_cpus",
    "cpu_fraction",
    "iowait_fraction",
    "steal_fraction",
    "process_bytes",
    "group_bytes",
    "memory_bytes",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
)
GPU = ("busy_fraction", "memory_bytes", "power_w", "sm_clock_mhz", "temperature_c")


def step_course(records: Sequence[StepRecord]) -> StepCourse | None:
    """A run over its steps; `None` without a record."""
    if not records:
        return None
    x = np.array([r.step for r in records], dtype=np.float64)
    wall = np.array([r.wall_s for r in records], dtype=np.float64)
    unit = unit_of(records)
    loss = np.array([math.nan if r.loss is None else r.loss for r in records])
    wrong = [r.step for r in records if r.loss is not None and not math.isfinite(r.loss)]
    norms = np.array([math.nan if r.grad_norm is None else r.grad_norm for r in records])
    return StepCourse(
        spans=_spans(records, wall),
        rate=curve(x, _per_second(records, wall, unit), CURVE_PLACES),
        unit=_drawn(unit),
        loss=curve(x, loss, CURVE_PLACES),
        grad_norm=curve(x, norms, CURVE_PLACES),
        num_not_finite=len(wrong),
        first_not_finite=wrong[0] if wrong else None,
        pace=pace(records),
    )


def pace(records: Sequence[StepRecord]) -> Pace | None:
    """Median and spread of work per second over the steady steps."""
    calm = steady(records)
    wall = np.array([r.wall_s for r in calm], dtype=np.float64)
    unit = unit_of(calm) if calm else "step"
    rates = _per_second(calm, wall, unit)
    rates = rates[np.isfinite(rates)]
    if not len(rates):
        return None
    low, median, high = np.quantile(rates, (0.05, 0.5, 0.95))
    return Pace(_drawn(unit), float(median), float(low), float(high), len(rates))


def curve(x: Floats, values: Floats, places: int) -> Curve:
    """`values` over `x` in at most `places` places of equally many; what is not finite counts nowhere."""
    starts = _starts(len(x), places)
    known = np.where(np.isfinite(values), values, np.nan)
    low, mid, high = [], [], []
    for start, end in pairwise((*starts, len(x))):
        part = known[start:end]
        part = part[~np.isnan(part)]
        low.append(float(part.min()) if len(part) else None)
        mid.append(float(np.median(part)) if len(part) else None)
        high.append(float(part.max()) if len(part) else None)
    return Curve(
        x=tuple(float(x[start]) for start in starts),
        low=tuple(low),
        mid=tuple(mid),
        high=tuple(high),
        num_values=int(np.count_nonzero(~np.isnan(known))),
    )


def machine_course(samples: Sequence[TelemetrySample]) -> MachineCourse | None:
    """Process and machine over the seconds of a run; `None` without two samples."""
    ordered = sorted(
        (s for s in samples if math.isfinite(s.sampled_at)), key=lambda sample: sample.sampled_at
    )
    if len(ordered) < 2:
        return None
    seconds, breaks, now = [0.0], [], 0.0
    for before, after in pairwise(ordered):
        gap = after.sampled_at - before.sampled_at
        if gap > PAUSE_S:
            breaks.append(now)
            gap = 1.0
        now += gap
        seconds.append(now)
    x = np.array(seconds)
    newest = ordered[-1]
    return MachineCourse(
        seconds=now,
        num_samples=len(ordered),
        breaks=tuple(breaks),
        curves=_curves(x, ordered, PROCESS_AND_MACHINE),
        gpus=_gpus(x, ordered),
        memory_limit_bytes=newest.memory_limit_bytes,
        memory_total_bytes=newest.memory_total_bytes,
        sampler_fraction=newest.sampler_fraction,
    )


def pair_speeds(
    pairs: Sequence[tuple[int, Measurement | None, Measurement | None]],
) -> tuple[PairSpeeds, ...]:
    """Steady work per second of `(number, baseline, candidate)`, as a verdict's ratio takes it.

    Raises `UsageError` for times that are not positive numbers.
    """

    def speed(measured: Measurement | None) -> float | None:
        times = None if measured is None else run_times(measured)
        return None if times is None else 1 / times.steady_s

    return tuple(PairSpeeds(number, speed(b), speed(c)) for number, b, c in pairs)


def arms_course(
    baseline: Sequence[Sequence[StepRecord]], candidate: Sequence[Sequence[StepRecord]]
) -> ArmsCourse | None:
    """Losses of two arms over their steps; `None` when one of them recorded none."""
    base, cand = _losses(baseline), _losses(candidate)
    if not base or not cand:
        return None
    common = sorted(base.keys() & cand.keys())
    apart = np.array([_relative(_median(base[step]), _median(cand[step])) for step in common])
    return ArmsCourse(
        baseline=_of_processes(base),
        candidate=_of_processes(cand),
        difference=curve(np.array(common, dtype=np.float64), apart, CURVE_PLACES),
    )


def _starts(count: int, places: int) -> list[int]:
    size = max(1, math.ceil(count / places))
    return list(range(0, count, size))


def _spans(records: Sequence[StepRecord], wall: Floats) -> tuple[StepSpan, ...]:
    starts = _starts(len(records), SPANS)
    counts = np.diff([*starts, len(records)])
    phases = {
        name: np.add.reduceat(seconds, starts) / counts
        for name in HOST_PHASES
        if (seconds := np.array([r.host.get(name, 0.0) for r in records])).any()
    }
    means = np.add.reduceat(wall, starts) / counts
    longest = np.maximum.reduceat(wall, starts)
    tags: list[dict[str, int]] = [{} for _ in starts]
    size = starts[1] if len(starts) > 1 else len(records)
    for number, record in enumerate(records):
        for tag in record.tags:
            found = tags[number // size]
            found[tag] = found.get(tag, 0) + 1
    return tuple(
        StepSpan(
            first_step=records[start].step,
            last_step=records[start + int(counts[place]) - 1].step,
            num_steps=int(counts[place]),
            wall_s=float(means[place]),
            longest_s=float(longest[place]),
            host={
                name: float(values[place]) for name, values in phases.items() if values[place] > 0
            },
            tags=tags[place],
        )
        for place, start in enumerate(starts)
    )


def _per_second(records: Sequence[StepRecord], wall: Floats, unit: Unit) -> Floats:
    amount: Callable[[StepRecord], float | None] = {
        "token": lambda r: r.tokens,
        "sample": lambda r: r.samples,
    }.get(unit, lambda r: 1)
    work = np.array([amount(r) or math.nan for r in records], dtype=np.float64)
    rates: Floats = np.divide(work, wall, out=np.full(len(work), np.nan), where=wall > 0)
    return rates


def _drawn(unit: Unit) -> Literal["token", "sample", "step"]:
    return "step" if unit == "work" else unit


def _curves(
    x: Floats, samples: Sequence[TelemetrySample] | Sequence[GpuSample], names: Sequence[str]
) -> dict[str, Curve]:
    found = {}
    for name in names:
        values = np.array([_number(getattr(sample, name)) for sample in samples])
        if np.isfinite(values).any():
            found[name] = curve(x, values, TELEMETRY_PLACES)
    return found


def _gpus(x: Floats, samples: Sequence[TelemetrySample]) -> tuple[GpuCourse, ...]:
    indices = sorted({gpu.index for sample in samples for gpu in sample.gpus})
    found = []
    for index in indices:
        seen = [
            next((gpu for gpu in sample.gpus if gpu.index == index), GpuSample(index))
            for sample in samples
        ]
        known = [gpu for gpu in seen if gpu.name is not None or gpu.memory_total_bytes is not None]
        newest = known[-1] if known else seen[-1]
        held = [why for gpu in seen for why in gpu.throttled_by]
        found.append(
            GpuCourse(
                index=index,
                name=newest.name,
                curves=_curves(x, seen, GPU),
                memory_total_bytes=newest.memory_total_bytes,
                power_limit_w=newest.power_limit_w,
                throttled={why: held.count(why) / len(seen) for why in dict.fromkeys(held)},
            )
        )
    return tuple(found)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _losses(runs: Sequence[Sequence[StepRecord]]) -> dict[int, list[float]]:
    """Finite losses of all processes, by step."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for record in run:
            if record.loss is not None and math.isfinite(record.loss):
                found.setdefault(record.step, []).append(record.loss)
    return dict(sorted(found.items()))


def _of_processes(losses: dict[int, list[float]]) -> Curve:
    """The spread over processes at each step, or over the steps of a place where there are many."""
    steps = list(losses)
    starts = _starts(len(steps), CURVE_PLACES)
    parts = [
        [value for step in steps[start:end] for value in losses[step]]
        for start, end in pairwise((*starts, len(steps)))
    ]
    return Curve(
        x=tuple(float(steps[start]) for start in starts),
        low=tuple(min(part) for part in parts),
        mid=tuple(_median(part) for part in parts),
        high=tuple(max(part) for part in parts),
        num_values=sum(len(part) for part in parts),
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _relative(baseline: float, candidate: float) -> float:
    return candidate / baseline - 1 if baseline else math.nan
