"""Two trainings beside each other, before and after: quality, speed, time, use of the machine and memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from statistics import median
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.judge.attribute import steady
from hotloop.judge.targets import check_targets
from hotloop.judge.utilization import Use, steady_tokens_per_s, while_training
from hotloop.report import numbers, terminal
from hotloop.report.held_out import NAMES
from hotloop.runs.notes import num_done
from hotloop.runs.run_page import problem_lines
from hotloop.runs.stored_run import StoredRun

WORDS: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("it/s", "examples/s", "tokens/s", "CPUs kept busy"), numbers.count),
    "steps": "{:,.0f}".format,
    "whole run": numbers.seconds,
    **dict.fromkeys(("GPU busy", "waiting for data"), numbers.percent),
    **dict.fromkeys(
        ("memory, peak", "GPU memory, peak", "host memory, peak"), lambda n: numbers.size(int(n))
    ),
}
"""Of what a training took. All else says how good its model is."""
TOLD = ("accuracy", "macro_f1", "f1", "mean_f1", "r2", "perplexity", "held-out loss", "examples/s", "whole run")  # fmt: skip
"""What comes first."""
ONCE = "each was trained once: how far runs with other seeds lie apart is not in these numbers"


def two_runs(before: StoredRun, after: StoredRun) -> dict[str, Any]:
    """JSON-ready. Raises `UsageError` for a directory without steps."""
    both = before.run, after.run
    flat = [{} if each.settings is None else each.settings.config.flat() for each in both]
    pairs = {key: [own.get(key) for own in flat] for key in flat[0] | flat[1] if key != "name"}
    unlike = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    notes = [
        f"{each.directory} is not finished: its numbers are of what was done"
        for each in both
        if each.state not in ("finished", "ended_early")
    ]
    devices = [each.environment.device for each in both if each.environment is not None]
    if len(set(devices)) > 1:
        notes.append(f"they ran on two devices: {numbers.listed(devices)}")
    if others := [f"`{key}`" for key in unlike if key == "task" or key.startswith("data.")]:
        what = numbers.listed(others)
        notes.append(f"the held-out examples may not be the same, as {what} is not")
    damaged = (line for each in (before, after) for line in problem_lines(each))
    notes += [f"damaged, and left out: {line}" for line in damaged]
    found = {
        name: {"run": str(each.directory), "state": each.state, "measures": measures_of(each)}
        for name, each in zip(("before", "after"), both, strict=True)
    }
    return {"schema": "hotloop.two_runs/1", **found, "settings": unlike, "notes": [*notes, ONCE]}


def measures_of(run: StoredRun) -> dict[str, float]:
    """What is known of a training: how good its model is, then what it took."""
    measured, task = run.measurement, run.task
    if measured is None or not measured.records:
        do = "give the run directories of two trainings"
        raise UsageError("no step of a training is recorded", where=str(run.directory), do=do)
    records, calm = measured.records, steady(measured.records)
    found: dict[str, float | None] = {}
    if task is not None:
        found |= task.measures()
        of_entities = {} if task.entities is None else task.entities.measures()
        found |= {f"{name} of entities": value for name, value in of_entities.items()}
    kept = None if task is None else task.step
    if evals := [each for each in run.evals if kept in (None, each["step"])]:
        found["held-out loss"] = evals[-1].get("averaged_loss", evals[-1]["loss"])
    wall = math.fsum(each.wall_s for each in calm)
    samples = [each.samples for each in calm if each.samples is not None]
    found["it/s"] = 1 / median(each.wall_s for each in calm) if wall else None
    found["examples/s"] = sum(samples) / wall if wall and len(samples) == len(calm) else None
    found["tokens/s"] = steady_tokens_per_s(records)
    found["steps"] = num_done(records)
    if run.goodput is not None:
        found["whole run"] = run.goodput.wall_s - run.goodput.seconds.get("idle", 0.0)
    used = Use(measured, while_training(run.telemetry, records), run.telemetry)
    targets = check_targets(measured, diagnosis=run.diagnosis, telemetry=run.telemetry)
    shares = {target.name: target.value for target in targets}
    found["GPU busy"], found["waiting for data"] = shares["gpu_busy"], shares["data_wait"]
    found["CPUs kept busy"] = used.mean("process_cpus")
    peak = max((each.peak_bytes for each in records if each.peak_bytes is not None), default=None)
    host = None if measured.census is None else measured.census.host_peak_bytes
    if not used.on_cpu:
        found["GPU memory, peak"] = peak
    found["memory, peak" if used.on_cpu else "host memory, peak"] = host
    return {name: value for name, value in found.items() if value is not None}


def two_runs_in_words(found: dict[str, Any]) -> str:
    """The answer first."""
    before, after = (found[name]["measures"] for name in ("before", "after"))
    rows = {name: _row(name, before.get(name), after.get(name)) for name in before | after}
    told = [rows[name] for name in TOLD if name in rows]
    parts = [
        f"before  {found['before']['run']}\nafter   {found['after']['run']}",
        ", ".join(f"{name} {a} and {b}" for name, a, b, _ in told),
        terminal.render_rows("both", [("", "before", "after", ""), *rows.values()]),
        terminal.render_rows(
            "settings that differ",
            [(key, *map(json.dumps, pair)) for key, pair in found["settings"].items()],
        ),
        "\n".join(found["notes"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _row(name: str, before: float | None, after: float | None) -> tuple[str, str, str, str]:
    """The difference of measures of quality, else the ratio; of shares neither."""
    words = WORDS.get(name, "{:.4f}".format)
    change = ""
    if before is not None and after is not None:
        if name not in WORDS:
            change = f"{after - before:+.4f}"
        elif before and words is not numbers.percent:
            change = numbers.ratio(after / before)
    first, second = (numbers.UNKNOWN if x is None else words(x) for x in (before, after))
    return NAMES.get(name, name), first, second, change
