"""Process, machine and GPUs over the seconds of a run, as charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotloop.core.course import Curve, GpuCourse, MachineCourse
from hotloop.report import numbers
from hotloop.report.axes import Kind
from hotloop.report.charts import Series, line_chart

MOST_GPUS = 5
"""Lines that can be told apart in one chart."""

Named = Sequence[tuple[str, str]]


def machine_charts(course: MachineCourse, *, cpus: float | None) -> str:
    """Every quantity that was sampled. `cpus` is how many the run may use."""
    charts = [
        _host(
            course,
            "CPUs that this run kept busy",
            (("process_cpus", "this run"),),
            kind="plain",
            unit="CPUs",
            limit=None if cpus is None else ("allowed", cpus),
            written=lambda value: f"{value:.3g} CPUs",
        ),
        _host(
            course,
            "CPUs of the machine, all processes",
            (
                ("cpu_fraction", "busy"),
                ("iowait_fraction", "waiting for disks"),
                ("steal_fraction", "taken by other guests"),
            ),
            kind="fraction",
            written=numbers.percent,
        ),
        _host(
            course,
            "Memory",
            (
                ("process_bytes", "this run, resident"),
                ("group_bytes", "its control group, file cache included"),
                ("memory_bytes", "machine, all processes"),
            ),
            kind="bytes",
            limit=_memory_limit(course),
            written=_size,
        ),
        _host(
            course,
            "Disks of the machine",
            (("disk_read_bytes_per_s", "read"), ("disk_write_bytes_per_s", "written")),
            kind="bytes",
            unit="/s",
            written=lambda value: f"{_size(value)}/s",
        ),
        *_gpus(course),
    ]
    cost = numbers.percent(course.sampler_fraction)
    said = f"{course.num_samples:,} samples over {numbers.seconds(course.seconds)}"
    if course.breaks:
        said += f"; dotted: the run was stopped and continued ({len(course.breaks)})"
    if course.sampler_fraction is not None:
        said += f"; sampling cost {cost} of one core"
    return f'<p class="note">{said}</p><div class="grid">{"".join(charts)}</div>'


def _host(
    course: MachineCourse,
    title: str,
    named: Named,
    *,
    kind: Kind,
    written: Callable[[float], str],
    unit: str = "",
    limit: tuple[str, float] | None = None,
) -> str:
    series = [
        Series(name, course.curves[key], number)
        for number, (key, name) in enumerate(named, 1)
        if key in course.curves and not _is_idle(key, course.curves[key])
    ]
    return _chart(course, title, series, kind=kind, written=written, unit=unit, limit=limit)


def _gpus(course: MachineCourse) -> list[str]:
    if not course.gpus:
        return []
    shown = course.gpus[:MOST_GPUS]
    totals = {gpu.memory_total_bytes for gpu in shown}
    powers = {gpu.power_limit_w for gpu in shown}

    def chart(
        title: str,
        key: str,
        kind: Kind,
        written: Callable[[float], str],
        unit: str = "",
        limit: tuple[str, float] | None = None,
        note: str = "",
    ) -> str:
        series = [
            Series(_gpu_name(gpu), gpu.curves[key], number)
            for number, gpu in enumerate(shown, 1)
            if key in gpu.curves
        ]
        name = title if len(shown) > 1 else f"{title}: {_gpu_name(shown[0])}"
        return _chart(
            course, name, series, kind=kind, written=written, unit=unit, limit=limit, note=note
        )

    total, power = _only(totals), _only(powers)
    rest = len(course.gpus) - len(shown)
    return [
        chart(
            "GPU busy",
            "busy_fraction",
            "fraction",
            numbers.percent,
            note="as NVML counts: any kernel on any part of it"
            + (f"; {rest} more GPUs are not drawn" if rest else ""),
        ),
        chart(
            "GPU memory",
            "memory_bytes",
            "bytes",
            _size,
            limit=None if total is None else ("on the card", total),
        ),
        chart(
            "GPU power",
            "power_w",
            "plain",
            lambda value: f"{value:.0f} W",
            unit="W",
            limit=None if power is None else ("limit", power),
        ),
        chart(
            "GPU clock",
            "sm_clock_mhz",
            "plain",
            lambda value: f"{value:.0f} MHz",
            unit="MHz",
            note=_throttling(shown),
        ),
        chart("GPU temperature", "temperature_c", "plain", lambda value: f"{value:.0f} °C", "°C"),
    ]


def _chart(
    course: MachineCourse,
    title: str,
    series: Sequence[Series],
    *,
    kind: Kind,
    written: Callable[[float], str],
    unit: str = "",
    limit: tuple[str, float] | None = None,
    note: str = "",
) -> str:
    return line_chart(
        title,
        series,
        kind=kind,
        unit=unit,
        x_kind="seconds",
        x_name="time",
        limit=limit,
        breaks=course.breaks,
        note=note,
        written=written,
    )


def _is_idle(key: str, curve: Curve) -> bool:
    """Time taken by other guests is shown where there was some."""
    return key == "steal_fraction" and not any(curve.high)


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


def _size(value: float) -> str:
    return numbers.size(int(value))
