"""A process that ended well -> its `Measurement`: the records it left, which of them count, what it ran on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotloop.core.census import Census
from hotloop.core.errors import CommandFailed
from hotloop.core.files import read_json
from hotloop.core.measurement import Environment, Measurement, Plan, Sample
from hotloop.core.step import StepRecord, read_steps, readable_steps
from hotloop.hardware.environment import nvidia_driver
from hotloop.trial.arm import Arm
from hotloop.trial.process import Finished, tail

CLOCK_FILE = "clock-0.json"


def measurement_of(
    arm: Arm,
    command: Sequence[str],
    plan: Plan,
    environment: Environment,
    finished: Finished,
    run: Path,
    log: Path,
) -> Measurement:
    """environment: of the machine, before it ran. Raises `CommandFailed` where it made too few steps."""
    environment = dataclasses.replace(
        environment, variables={**environment.variables, **dict(sorted(arm.env.items()))}
    )
    records: tuple[StepRecord, ...] = ()
    samples: tuple[Sample, ...] = ()
    census: Census | None = None
    returncode: int | None = finished.returncode
    if arm.records == "none":
        samples = (Sample(finished.wall_s, "s"),)
    else:
        clocked = arm.records == "step_clock"
        steps = run / ("steps-0.jsonl" if clocked else "steps.jsonl")
        found = tuple(read_steps(steps)) if steps.exists() else ()
        wanted = plan.warmup_steps + plan.steps
        if len(found) < wanted:
            raise CommandFailed(
                f"`{arm.name}` made {len(found)} steps, {wanted} were asked for "
                f"({plan.warmup_steps} of warm-up and {plan.steps} that count)",
                where=str(log),
                do=_why_too_few(arm, len(found), run, log),
                returncode=finished.returncode,
            )
        found = _of_all_ranks(found[:wanted], run) if clocked else found[:wanted]
        found = _with_samples_spread(found, plan.warmup_steps)
        records = tuple(_marked(record, arm, plan) for record in found)
        used = run / ("census-0.json" if clocked else "census.json")
        census = _with_all_memory(read_json(used, Census), run) if used.exists() else None
        seen = _read(run / (CLOCK_FILE if clocked else "environment.json"))
        environment = _as_seen(environment, seen)
        if clocked and seen.get("stopped"):
            returncode = None
    return Measurement(
        arm=arm.name,
        command=tuple(command),
        plan=plan,
        environment=environment,
        records=records,
        samples=samples,
        census=census,
        process_s=finished.wall_s,
        started_at=finished.started_at,
        returncode=returncode,
        other_programs=finished.other_programs,
    )


def was_stopped(run: Path) -> bool:
    """Whether the step clock that recorded there ended its process after the last counted step."""
    return bool(_read(run / CLOCK_FILE).get("stopped"))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _as_seen(host: Environment, seen: dict[str, Any]) -> Environment:
    """What the process says that it ran on: its own Python and torch, and a GPU only where it used one."""
    environment = dataclasses.replace(
        host, python=seen.get("python", host.python), torch=seen.get("torch")
    )
    if seen.get("cuda") is None:
        return environment
    return dataclasses.replace(
        environment,
        device=seen["device"],
        num_devices=seen["num_devices"],
        cuda=seen["cuda"],
        driver=nvidia_driver(),
    )


def _of_all_ranks(records: Sequence[StepRecord], run: Path) -> tuple[StepRecord, ...]:
    """With the samples of all processes that made these steps; what one has not recorded is taken to be what the others took."""
    ranks = [readable_steps(each)[0] for each in run.glob("steps-*.jsonl")]
    whole = [each for each in ranks if len(each) >= len(records)]
    times = max(len([*run.glob("claim-*")]), len(whole)) / len(whole)
    seen = [sum(each.samples or 0 for each in step) for step in zip(*whole)]
    made = [round(times * samples) or None for samples in seen]
    return tuple(dataclasses.replace(r, samples=each) for r, each in zip(records, made))


def _with_all_memory(census: Census, run: Path) -> Census:
    """With the memory of all processes; `None` where one has not told it."""
    each = [read_json(path, Census).tree_bytes for path in run.glob("census-*.json")]
    told = None not in each and len(each) >= len([*run.glob("claim-*")])
    return dataclasses.replace(census, tree_bytes=told * sum(filter(None, each)) or None)


def _with_samples_spread(
    records: Sequence[StepRecord], warmup_steps: int
) -> tuple[StepRecord, ...]:
    """With the mean of what the counted steps took, where a few took none: who asks a loader ahead, as Accelerate does,
    takes two batches in the first step of an epoch and none in its last."""
    counted = records[warmup_steps:]
    seen = [each.samples for each in counted if each.samples]
    if not len(counted) / 2 < len(seen) < len(counted):
        return tuple(records)
    mean = max(round(sum(seen) / len(counted)), 1)
    return tuple(dataclasses.replace(each, samples=mean) for each in records)


def _marked(record: StepRecord, arm: Arm, plan: Plan) -> StepRecord:
    """With the work it did, and the tag `warmup` where it is not to be counted."""
    tags = tuple(tag for tag in record.tags if tag != "warmup")
    return dataclasses.replace(
        record,
        tokens=record.tokens if record.tokens is not None else arm.tokens_per_step,
        samples=record.samples if record.samples is not None else arm.samples_per_step,
        tags=("warmup", *tags) if record.step < plan.warmup_steps else tags,
    )


def _why_too_few(arm: Arm, found: int, run: Path, log: Path) -> str:
    notes = run / "notes.txt"
    if notes.exists():
        return notes.read_text(encoding="utf-8").strip()
    if found or arm.records == "run":
        return f"ask for fewer steps, or let the command make more. {tail(log)}"
    return (
        "no step was seen: the clock needs a Python that reads PYTHONPATH (not -I, -E or -S) and a "
        f"script that steps a torch optimizer, or calls `hotloop.step()`. {tail(log)}"
    )
