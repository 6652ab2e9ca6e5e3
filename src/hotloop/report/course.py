"""A run as charts: losses and speed over its steps; process, machine and GPUs over its seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape

from hotloop.core.course import Curve, GpuCourse, MachineCourse, StepCourse
from hotloop.report import numbers
from hotloop.report.canvas import Kind
from hotloop.report.charts import Series, line_chart

MOST_GPUS = 5
"""Lines that can be told apart in one chart."""

_HOST: tuple[tuple[str, Mapping[str, str], Kind, str], ...] = (
    ("CPUs that this run kept busy", {"process_cpus": "this run"}, "plain", "CPUs"),
    (
        "CPUs of the machine, all processes",
        {
            "cpu_fraction": "busy",
            "iowait_fraction": "waiting for disks",
            "steal_fraction": "taken by other guests",
        },
        "fraction",
        "",
    ),
    (
        "Memory",
        {
            "process_bytes": "this run, resident",
            "group_bytes": "its control group, file cache included",
            "memory_bytes": "machine, all processes",
        },
        "bytes",
        "",
    ),
    (
        "Disks of the machine",
        {"disk_read_bytes_per_s": "read", "disk_write_bytes_per_s": "written"},
        "bytes",
        "/s",
    ),
)
"""Title, name of each curve, kind of axis and unit."""

_GPU: tuple[tuple[str, str, Kind, str], ...] = (
    ("GPU busy", "busy_fraction", "fraction", ""),
    ("GPU memory", "memory_bytes", "bytes", ""),
    ("GPU power", "power_w", "plain", "W"),
    ("GPU clock", "sm_clock_mhz", "plain", "MHz"),
    ("GPU temperature", "temperature_c", "plain", "°C"),
)
"""Title, curve, kind of axis and unit."""


def loss_charts(
    steps: StepCourse | None,
    held_out: Mapping[str, Sequence[tuple[int, float]]],
    *,
    of_arms: bool = False,
) -> str:
    """Losses of a training and norms of its gradients. held_out: `(step, loss)` of evaluations, by name."""
    series, notes = [], []
    if steps is not None and steps.loss.num_values:
        series.append(Series("training", steps.loss, 1))
    for number, (name, points) in enumerate(held_out.items()):
        series.append(Series(name, _exact(points), 2 + number % 4, dots=len(points) <= 100))
    if steps is not None and not steps.loss.is_exact:
        notes.append(
            "training: the line is the median of neighbouring steps, the band their lowest and highest"
        )
    if steps is not None and steps.num_not_finite:
        where = numbers.counted(steps.num_not_finite, "step")
        notes.append(f"no number at {where}, first at step {steps.first_not_finite:,}")
    title = "Loss of the final training" if of_arms else "Loss over the steps"
    note = "; ".join(notes)
    drawn = line_chart(
        title, series, kind="plain", unit="nats a target", from_zero=False, note=note
    )
    if not drawn and notes:
        drawn = f"<p>{escape(note)}</p>"
    if steps is None:
        return drawn
    norms = [Series("gradient norm", steps.grad_norm, 1)]
    return drawn + line_chart("Norm of the gradients, before clipping", norms, kind="plain")


def _exact(points: Sequence[tuple[int, float]]) -> Curve:
    values = tuple(value if math.isfinite(value) else None for _, value in points)
    return Curve(tuple(float(step) for step, _ in points), values, values, values, len(values))


def speed_chart(steps: StepCourse) -> str:
    """Work per second of each step, and what is usual."""
    unit = f"{steps.unit}s"
    notes = []
    if steps.pace is not None:
        notes.append(
            f"median of the {steps.pace.num_steps:,} steps without a tag: "
            f"{numbers.rate(steps.pace.median, unit)}; nine in ten lie between "
            f"{numbers.rate(steps.pace.low, unit)} and {numbers.rate(steps.pace.high, unit)}"
        )
    if not steps.rate.is_exact:
        notes.append("the band runs from the slowest to the fastest step of each place")
    return line_chart(
        "Speed of each step",
        [Series("speed", steps.rate, 1)],
        kind="count",
        unit=f"{unit}/s",
        note="; ".join(notes),
        written=lambda value: numbers.rate(value, unit),
    )


def machine_charts(course: MachineCourse, *, cpus: float | None) -> str:
    """Every quantity that was sampled. `cpus` is how many the run may use."""
    limits = {
        "CPUs that this run kept busy": None if cpus is None else ("allowed", cpus),
        "Memory": _memory_limit(course),
    }
    draw = partial(line_chart, x_kind="seconds", x_name="time", breaks=course.breaks)
    charts = []
    for title, names, kind, unit in _HOST:
        series = [
            Series(name, course.curves[key], number)
            for number, (key, name) in enumerate(names.items(), 1)
            if key in course.curves
            # Time taken by other guests is shown where there was some.
            and (key != "steal_fraction" or any(course.curves[key].high))
        ]
        charts.append(draw(title, series, kind=kind, unit=unit, limit=limits.get(title)))
    if course.gpus:
        charts += _gpu_charts(course, draw)
    cost = numbers.percent(course.sampler_fraction)
    said = f"{course.num_samples:,} samples over {numbers.seconds(course.seconds)}"
    if course.breaks:
        said += f"; dotted: the run was stopped and continued ({len(course.breaks)})"
    if course.sampler_fraction is not None:
        said += f"; sampling cost {cost} of one core"
    return f'<p class="note">{said}</p><div class="grid">{"".join(charts)}</div>'


def _gpu_charts(course: MachineCourse, draw: Callable[..., str]) -> list[str]:
    shown = course.gpus[:MOST_GPUS]
    limits = {
        "GPU memory": ("on the card", _only({gpu.memory_total_bytes for gpu in shown})),
        "GPU power": ("limit", _only({gpu.power_limit_w for gpu in shown})),
    }
    rest = len(course.gpus) - len(shown)
    notes = {
        "GPU busy": "as NVML counts: any kernel on any part of it"
        + (f"; {rest} more GPUs are not drawn" if rest else ""),
        "GPU clock": _throttling(shown),
    }
    charts = []
    for title, key, kind, unit in _GPU:
        series = [
            Series(_gpu_name(gpu), gpu.curves[key], number)
            for number, gpu in enumerate(shown, 1)
            if key in gpu.curves
        ]
        name = title if len(shown) > 1 else f"{title}: {_gpu_name(shown[0])}"
        level, value = limits.get(title, ("", None))
        limit = None if value is None else (level, value)
        note = notes.get(title, "")
        charts.append(draw(name, series, kind=kind, unit=unit, limit=limit, note=note))
    return charts


def _memory_limit(course: MachineCourse) -> tuple[str, float] | None:
    if course.memory_limit_bytes is not None:
        return "limit of this run", course.memory_limit_bytes
    if course.memory_total_bytes is not None:
        return "of the machine", course.memory_total_bytes
    return None


def _throttling(gpus: Sequence[GpuCourse]) -> str:
    parts = [
        f"held down by {why.replace('_', ' ')} in {numbers.percent(share)} of the samples"
        for gpu in gpus
        for why, share in gpu.throttled.items()
    ]
    return "; ".join(parts) or "no sample shows it held down by power or heat"


def _gpu_name(gpu: GpuCourse) -> str:
    return f"GPU {gpu.index}" + (f", {gpu.name}" if gpu.name else "")


def _only(values: set[int | None] | set[float | None]) -> float | None:
    """The value that all share."""
    return next(iter(values)) if len(values) == 1 else None
