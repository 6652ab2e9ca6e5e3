"""Sums up a run for drawing: places of neighbouring steps or seconds, with nothing smoothed away.

A place keeps the lowest, the median and the highest of its values, so that one slow step in a
million still shows as the edge of a band.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import Literal

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
    x = [float(r.step) for r in records]
    unit = unit_of(records)
    wrong = [r.step for r in records if r.loss is not None and not math.isfinite(r.loss)]
    return StepCourse(
        spans=_spans(records),
        rate=curve(x, _per_second(records, unit), CURVE_PLACES),
        unit=_drawn(unit),
        loss=curve(x, [r.loss for r in records], CURVE_PLACES),
        grad_norm=curve(x, [r.grad_norm for r in records], CURVE_PLACES),
        num_not_finite=len(wrong),
        first_not_finite=wrong[0] if wrong else None,
        pace=pace(records),
    )


def pace(records: Sequence[StepRecord]) -> Pace | None:
    """Median and spread of work per second over the steady steps."""
    calm = steady(records)
    unit = unit_of(calm) if calm else "step"
    rates = _finite(_per_second(calm, unit))
    if not rates:
        return None
    cuts = quantiles(rates, n=20, method="inclusive") if len(rates) > 1 else rates
    return Pace(_drawn(unit), median(rates), cuts[0], cuts[-1], len(rates))


def curve(x: Sequence[float], values: Sequence[float | None], places: int) -> Curve:
    """`values` over `x` in at most `places` places of equally many; what is not finite counts nowhere."""
    starts = _starts(len(x), places)
    parts = [_finite(values[start:end]) for start, end in pairwise((*starts, len(x)))]
    return _band([x[start] for start in starts], parts)


def _band(x: Sequence[float], parts: Sequence[Sequence[float]]) -> Curve:
    return Curve(
        x=tuple(x),
        low=tuple(min(part, default=None) for part in parts),
        mid=tuple(median(part) if part else None for part in parts),
        high=tuple(max(part, default=None) for part in parts),
        num_values=sum(map(len, parts)),
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
    newest = ordered[-1]
    return MachineCourse(
        seconds=now,
        num_samples=len(ordered),
        breaks=tuple(breaks),
        curves=_curves(seconds, ordered, PROCESS_AND_MACHINE),
        gpus=_gpus(seconds, ordered),
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
    apart = [_relative(median(base[step]), median(cand[step])) for step in common]
    return ArmsCourse(
        baseline=_of_processes(base),
        candidate=_of_processes(cand),
        difference=curve([float(step) for step in common], apart, CURVE_PLACES),
    )


def _starts(count: int, places: int) -> list[int]:
    size = max(1, math.ceil(count / places))
    return list(range(0, count, size))


def _spans(records: Sequence[StepRecord]) -> tuple[StepSpan, ...]:
    starts = _starts(len(records), SPANS)
    return tuple(_span(records[start:end]) for start, end in pairwise((*starts, len(records))))


def _span(records: Sequence[StepRecord]) -> StepSpan:
    count = len(records)
    host = {name: math.fsum(r.host.get(name, 0.0) for r in records) / count for name in HOST_PHASES}
    return StepSpan(
        first_step=records[0].step,
        last_step=records[-1].step,
        num_steps=count,
        wall_s=math.fsum(r.wall_s for r in records) / count,
        longest_s=max(r.wall_s for r in records),
        host={name: seconds for name, seconds in host.items() if seconds > 0},
        tags=dict(Counter(tag for record in records for tag in record.tags)),
    )


def _per_second(records: Sequence[StepRecord], unit: Unit) -> list[float | None]:
    amount: Callable[[StepRecord], float | None] = {
        "token": lambda r: r.tokens,
        "sample": lambda r: r.samples,
    }.get(unit, lambda r: 1)
    done = [(amount(record), record.wall_s) for record in records]
    return [work / wall_s if work and wall_s > 0 else None for work, wall_s in done]


def _finite(values: Sequence[float | None]) -> list[float]:
    return [float(each) for each in values if each is not None and math.isfinite(each)]


def _drawn(unit: Unit) -> Literal["token", "sample", "step"]:
    return "step" if unit == "work" else unit


def _curves(
    x: Sequence[float],
    samples: Sequence[TelemetrySample] | Sequence[GpuSample],
    names: Sequence[str],
) -> dict[str, Curve]:
    curves = {
        name: curve(x, [getattr(sample, name) for sample in samples], TELEMETRY_PLACES)
        for name in names
    }
    return {name: drawn for name, drawn in curves.items() if drawn.num_values}


def _gpus(x: Sequence[float], samples: Sequence[TelemetrySample]) -> tuple[GpuCourse, ...]:
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
    return _band([float(steps[start]) for start in starts], parts)


def _relative(baseline: float, candidate: float) -> float:
    return candidate / baseline - 1 if baseline else math.nan
