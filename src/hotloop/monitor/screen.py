"""A frame of the monitor: panels of bars and small curves, for a terminal or as plain text."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from hotloop.core.telemetry import GpuSample, TelemetrySample
from hotloop.monitor.snapshot import Snapshot
from hotloop.report import numbers
from hotloop.report.machine import flops, mfu_words, rank_rows, ranks_answer
from hotloop.report.terminal import in_order
from hotloop.report.words import trouble

PLAIN_WIDTH = 100
BAR_CELLS = 24
CURVE_CELLS = 32
STALE_S = 5.0
LEVELS = "▁▂▃▄▅▆▇█"

STATES = {
    "not_started": "not started yet",
    "starting": "starting: no step yet (compiling takes a while)",
    "training": "training",
    "finished": "finished",
    "stopped": "stopped before its end: the same `hotloop train` again continues it",
    "system": "this machine",
    "examining": "the doctor runs a command and watches it",
    "trying_fixes": "the doctor tries fixes",
    "comparing": "two settings are compared",
    "examined": "the doctor has ended: `hotloop report` says what it found",
    "halted": "nothing happens here now",
}
COLOURS = {
    **dict.fromkeys(("training", "examining", "trying_fixes", "comparing"), "green"),
    **dict.fromkeys(("finished", "examined"), "cyan"),
    **dict.fromkeys(("stopped", "halted"), "red"),
    "starting": "yellow",
}

Row = tuple[str, str]


def frame(now: Snapshot) -> RenderableType:
    """Everything the snapshot knows; panels without content are left out."""
    panels: list[RenderableType | None] = [_head(now)]
    if now.state != "system":
        rows = [(name, printable(value)) for name, value in now.doctor]
        panels.append(_panel("command", rows))
        panels.append(_panel("training", _training(now)))
        panels.append(_panel(f"phases of the last {now.num_window_steps} steps", _phases(now)))
        if now.ranks is not None:
            rows = [("processes", ranks_answer(now.ranks)), *rank_rows(now.ranks)]
            panels.append(_panel(f"ranks, over {now.ranks.num_steps} steps", rows))
    panels.append(_panel("machine", _machine(now)))
    if now.telemetry is not None:
        for gpu in now.telemetry.gpus:
            panels.append(_panel(f"GPU {gpu.index} {gpu.name or ''}".strip(), _gpu(gpu)))
    return Group(*(panel for panel in panels if panel is not None))


def plain(now: Snapshot) -> str:
    """The frame without colours or control codes."""
    console = Console(
        file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, force_terminal=False
    )
    console.print(frame(now))
    assert isinstance(console.file, io.StringIO)
    lines = (line.rstrip() for line in console.file.getvalue().splitlines())
    return "\n".join(lines)


def _head(now: Snapshot) -> Text:
    clock = datetime.fromtimestamp(now.taken_at).strftime("%H:%M:%S")
    text = Text(f"hotloop monitor  {clock}  ", no_wrap=True, overflow="ellipsis")
    text.append(STATES[now.state], style=COLOURS.get(now.state, ""))
    if now.run is not None:
        text.append(f"\n{printable(now.run)}", style="bold")
    if now.device:
        text.append(f"\n{printable(now.device)}", style="dim")
    return text


def _training(now: Snapshot) -> list[Row]:
    rows: list[Row] = []
    if now.steps is not None and now.total_steps:
        share = now.steps / now.total_steps
        left = ""
        if now.state == "training" and now.remaining_s is not None:
            left = f", {numbers.seconds(now.remaining_s)} left"
        rows.append(("step", f"{bar(share)} {now.steps} of {now.total_steps}{left}"))
    elif now.steps:
        rows.append(("step", str(now.steps)))
    if now.tokens_per_s is not None:
        speed = f"{numbers.rate(now.tokens_per_s, 'tokens')}, {numbers.seconds(now.step_s)} a step"
        rows.append(("speed", f"{curve(now.rates)} {speed}"))
    elif now.step_s is not None:
        rows.append(("speed", f"{numbers.seconds(now.step_s)} a step"))
    if now.loss is not None:
        rows.append(("loss", f"{curve(now.losses)} {numbers.loss(now.loss)}"))
    if now.held_out_loss is not None:
        rows.append(("held-out loss", numbers.loss(now.held_out_loss)))
    used = now.utilization
    if used is not None and used.palm_mfu is not None:
        rows.append(("MFU", f"{bar(used.palm_mfu)} {mfu_words(used)}"))
        rows.append(("", f"of {flops(used.peak_flops_per_s)} measured in {used.dtype}"))
    elif used is not None and not now.doctor:
        rows.append(("MFU", f"{numbers.UNKNOWN}: {used.reason}"))
    seen = trouble(spikes=now.num_spikes, skipped=now.num_skipped, rollbacks=now.num_rollbacks)
    if seen:
        rows.append(("stability", f"{seen} in the last {now.num_recent} steps"))
    if now.num_damaged:
        lines = numbers.counted(now.num_damaged, "line")
        rows.append(("damaged", f"{lines} of its files could not be read"))
    return rows


def _phases(now: Snapshot) -> list[Row]:
    if not now.breakdown:
        return []
    shown = numbers.shares(now.breakdown)
    return [(name, f"{bar(now.breakdown[name])} {shown[name]}") for name in in_order(now.breakdown)]


def _machine(now: Snapshot) -> list[Row]:
    sample = now.telemetry
    if sample is None:
        return [] if now.state == "system" else [("telemetry", "none was written")]
    rows: list[Row] = []
    if now.telemetry_age_s is not None and now.telemetry_age_s > STALE_S:
        rows.append(("as of", f"{numbers.seconds(now.telemetry_age_s)} ago"))
    if sample.cpu_fraction is not None:
        rows.append(
            ("CPUs", f"{bar(sample.cpu_fraction)} {numbers.percent(sample.cpu_fraction)} busy")
        )
        others = [
            f"{numbers.percent(value)} {name}"
            for name, value in (
                ("waiting for disks", sample.iowait_fraction),
                ("taken by other guests", sample.steal_fraction),
            )
            if value is not None
        ]
        rows.append(
            ("", f"{curve(now.cpu_fractions, scale=(0.0, 1.0))} {', '.join(others)}".rstrip())
        )
    if sample.process_cpus is not None:
        memory = numbers.size(sample.process_bytes)
        rows.append(("this run", f"{sample.process_cpus:.2f} CPUs, {memory} resident"))
    rows.extend(_memory(sample))
    if sample.disk_read_bytes_per_s is not None and sample.disk_write_bytes_per_s is not None:
        read, written = sample.disk_read_bytes_per_s, sample.disk_write_bytes_per_s
        rows.append(
            ("disks", f"{numbers.size(int(read))}/s read, {numbers.size(int(written))}/s written")
        )
    if now.why_no_gpus:
        rows.append(("GPUs", f"not watched: {printable(now.why_no_gpus)}"))
    if sample.sampler_fraction is not None:
        rows.append(("telemetry", f"costs {numbers.percent(sample.sampler_fraction)} of one core"))
    return rows


def _memory(sample: TelemetrySample) -> list[Row]:
    rows = [("memory", _filled(sample.memory_bytes, sample.memory_total_bytes))]
    limit = sample.memory_limit_bytes
    if limit is not None and limit != sample.memory_total_bytes:
        rows.append(("its limit", _filled(sample.group_bytes, limit)))
    return [row for row in rows if row[1]]


def _gpu(gpu: GpuSample) -> list[Row]:
    rows: list[Row] = []
    if gpu.busy_fraction is not None:
        rows.append(("busy", f"{bar(gpu.busy_fraction)} {numbers.percent(gpu.busy_fraction)}"))
    if memory := _filled(gpu.memory_bytes, gpu.memory_total_bytes):
        rows.append(("memory", memory))
    if gpu.power_w is not None:
        limit = f" of {gpu.power_limit_w:.0f} W" if gpu.power_limit_w else ""
        share = gpu.power_w / gpu.power_limit_w if gpu.power_limit_w else 0.0
        rows.append(("power", f"{bar(share)} {gpu.power_w:.0f} W{limit}"))
    clocks = [
        f"{value:.0f} {unit}"
        for value, unit in (
            (gpu.sm_clock_mhz, "MHz"),
            (gpu.memory_clock_mhz, "MHz memory"),
            (gpu.temperature_c, "°C"),
        )
        if value is not None
    ]
    if clocks:
        rows.append(("clocks", ", ".join(clocks)))
    if gpu.throttled_by:
        rows.append(("slowed by", printable(", ".join(gpu.throttled_by).replace("_", " "))))
    return rows


def _filled(used: int | None, total: int | None) -> str:
    if used is None or not total:
        return ""
    return f"{bar(used / total)} {numbers.size(used)} of {numbers.size(total)}"


def _panel(title: str, rows: Iterable[Row]) -> Panel | None:
    listed = list(rows)
    if not listed:
        return None
    width = max(len(name) for name, _ in listed)
    body = Text("\n".join(f"{name:<{width}}  {value}" for name, value in listed))
    return Panel(body, title=printable(title), title_align="left", padding=(0, 1))


def bar(fraction: float) -> str:
    """`██████░░░░`, empty below 0 and full above 1."""
    share = min(max(fraction, 0.0), 1.0) if math.isfinite(fraction) else 0.0
    full = round(BAR_CELLS * share)
    return "█" * full + "░" * (BAR_CELLS - full)


def curve(values: Sequence[float], *, scale: tuple[float, float] | None = None) -> str:
    """The newest values as a line of blocks, from the lowest of them to the highest unless `scale` says.

    Those that are not finite are left out.
    """
    shown = [value for value in values if math.isfinite(value)][-CURVE_CELLS:]
    if len(shown) < 2:
        return ""
    low, high = scale or (min(shown), max(shown))
    if high <= low:
        return LEVELS[0] * len(shown)
    top = len(LEVELS) - 1
    return "".join(LEVELS[min(max(int(top * (v - low) / (high - low)), 0), top)] for v in shown)


def printable(text: str) -> str:
    """A name from outside must not steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
