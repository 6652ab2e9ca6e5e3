"""From what the probe and the doctor wrote to a `Measurement`; also of a run that was cut off."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from hotloop.core.census import Census
from hotloop.core.command_run import CommandRun
from hotloop.core.errors import EnvironmentFailed, HotloopError
from hotloop.core.files import read_json
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord, readable_steps, steps_of_ranks
from hotloop.core.telemetry import TELEMETRY_FILE, GpuSample, TelemetrySample, read_telemetry
from hotloop.doctor.directory import mapping_of
from hotloop.hardware.environment import fast_on_cpu, fast_on_cuda, nvidia_driver
from hotloop.judge.attribute import under_way
from hotloop.judge.judged_run import frees_memory
from hotloop.judge.warmup import tag_warmup

ARM = "doctor"
NOTES_FILE = "notes.txt"
MAX_NOTES = 8
CUT_OFF = (
    "the process that trained was ended before it could say so (killed, or by its own program): up to a "
    "second of its last steps is missing"
)
NOT_STARTED = "the probe could not start"
"""Begins the note of a process that cannot be watched; `trial/bootstrap` writes it."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a run directory holds of a command's steps."""

    measurement: Measurement
    problems: tuple[HotloopError, ...] = ()
    """Damaged files, each left out."""
    damaged_steps: tuple[tuple[Path, dict[int, str]], ...] = ()
    """Lines of step records that cannot be read, by file."""


def collect(directory: Path, run: CommandRun, environment: Environment) -> Collected:
    """Read whatever is there. `environment`: the machine, as it was before the command started."""
    problems: list[HotloopError] = []
    files = steps_of_ranks(directory)
    rank = min(files, default=0)
    records: list[StepRecord] = []
    damaged_steps = []
    if rank in files:
        try:
            records, damaged = readable_steps(files[rank])
            damaged_steps.append((files[rank], damaged))
        except HotloopError as error:
            problems.append(error)
    clock = mapping_of(directory / f"clock-{rank}.json", problems)
    census = _census(directory / f"census-{rank}.json", problems)
    samples, _ = read_telemetry(directory / TELEMETRY_FILE)
    if census is None and records:
        census = Census()  # of somebody else's script all the same: nothing was observed
    if census is not None:
        stepping_s = sum(each.wall_s + (each.left_out_s or 0.0) for each in records[1:])
        census = with_throttling(_as_seen(census), samples)
        census = with_foreign_load(census, samples, stepping_s)
        census = replace(
            census,
            fast_dtypes=_fast_dtypes(census, clock),
            other_trainings=tuple(_numbers(directory, "other-*.json", "steps")),
        )
    goes_on = bool(run.left_running) and not clock.get("finished")
    is_cut = clock.get("finished") is False
    if census is not None and is_cut and run.ended is not None and not goes_on:
        census = replace(census, notes=(*census.notes, CUT_OFF))
    warmup = sum("warmup" in record.tags for record in records)
    measurement = Measurement(
        arm=ARM,
        command=run.command,
        plan=Plan(
            warmup_steps=warmup,
            steps=run.steps if run.steps is not None else len(records) - warmup,
            timeout_s=0.0,
        ),
        environment=_environment(environment, census, clock, samples),
        records=tuple(records),
        census=census,
        process_s=run.wall_s,
        started_at=run.started_at,
        # 0 tells the judge that this was a whole run.
        returncode=None if run.ended == "interrupted" or goes_on or is_cut else run.returncode,
    )
    return Collected(measurement, tuple(problems), tuple(damaged_steps))


def _numbers(directory: Path, files: str, name: str) -> list[int]:
    """What processes that did not say more wrote under this name."""
    found = (mapping_of(path).get(name) for path in sorted(directory.glob(files)))
    return [number for number in found if isinstance(number, int)]


def other_ranks(directory: Path, measurement: Measurement) -> dict[int, Measurement]:
    """What the processes that trained together with the one that is judged made, by rank."""
    files = steps_of_ranks(directory)
    others = {}
    for rank in sorted(files)[1:]:
        try:
            records, _ = readable_steps(files[rank])
        except HotloopError:  # said where ranks are compared
            continue
        census = _census(directory / f"census-{rank}.json", [])
        if census is not None:
            others[rank] = replace(measurement, records=tuple(records), census=_as_seen(census))
    return others


def _as_seen(census: Census) -> Census:
    """A sampler that was cut off before its first line observed none."""
    if census.lines or "lines" not in census.seen:
        return census
    return replace(census, seen=tuple(name for name in census.seen if name != "lines"))


def _census(path: Path, problems: list[HotloopError]) -> Census | None:
    if not path.is_file():
        return None
    try:
        return read_json(path, Census)
    except HotloopError as error:
        problems.append(error)
        return None


def _fast_dtypes(census: Census, clock: Mapping[str, Any]) -> tuple[str, ...]:
    """Fast types of the device that the command trained on; empty where that is not known."""
    if census.device == "cpu":
        return fast_on_cpu()
    match clock.get("compute_capability"):
        case [int(major), int(minor)]:
            return fast_on_cuda((major, minor))
    return ()


def num_under_way(measurement: Measurement | None) -> int:
    """Steps that the breakdown is made of."""
    if measurement is None:
        return 0
    return len(under_way(tag_warmup(measurement.records, frees_memory=frees_memory(measurement))))


def is_attached(directory: Path) -> bool:
    """Whether the probe reported from at least one process."""
    return bool(steps_of_ranks(directory)) or any(directory.glob("*-*.json"))


def has_stepped(directory: Path) -> bool:
    """Whether a process began to make steps, and never came to say that it had ended."""
    if any(directory.glob("claim-*")):
        return True
    clocks = [mapping_of(path) for path in directory.glob("clock-*.json")]
    return any(not clock.get("finished") for clock in clocks)


def backwards_seen(directory: Path) -> int:
    """Passes backward in processes that made no step."""
    return sum(_numbers(directory, "idle-*.json", "backwards"))


def refuse_unseen(directory: Path) -> None:
    """Raises `EnvironmentFailed` where the probe could not start, so that the command was ended before it trained."""
    if is_attached(directory) or has_stepped(directory):
        return
    why = next((note for note in probe_notes(directory) if note.startswith(NOT_STARTED)), None)
    if why is None:
        return
    _, _, error = why.removeprefix(NOT_STARTED).strip(": ").partition(": ")
    raise EnvironmentFailed(
        f"the command was ended when it imported torch, since nothing of it could have been recorded: {error}",
        where=str(directory / NOTES_FILE),
        do="examine it in an environment with a torch that hotloop knows: 2.11 or newer",
    )


def probe_notes(directory: Path) -> list[str]:
    """What the probe could not do: the same line once, every process of a command may write it."""
    path = directory / NOTES_FILE
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    more = len(lines) - MAX_NOTES
    return lines[:MAX_NOTES] + ([f"and {more} more lines in {path.name}"] if more > 0 else [])


def _environment(
    machine: Environment,
    census: Census | None,
    clock: Mapping[str, Any],
    samples: list[TelemetrySample],
) -> Environment:
    """What the command ran on, as it was seen; not what we run on."""

    def text(name: str) -> str | None:
        return str(clock[name]) if clock.get(name) else None

    seen = replace(machine, python=text("python") or "not recorded", torch=text("torch"))
    if census is None or not (census.device or "").startswith("cuda"):
        return seen
    names = {gpu.uuid: gpu.name for sample in samples for gpu in sample.gpus if gpu.name}
    name = text("device_name") or names.get(census.device_uuid)
    return replace(
        seen,
        device=name or f"{census.device}, its name is not known",
        num_devices=census.num_ranks or 1,
        cuda=text("cuda"),
        driver=nvidia_driver(),
    )


FEWEST_SAMPLES = 3
"""Seconds of telemetry below which nothing is said."""
FEWEST_GPU_SAMPLES = 10
"""The same of a GPU."""


def with_foreign_load(
    census: Census,
    samples: Sequence[TelemetrySample],
    stepping_s: float = math.inf,
    *,
    num_cpus: int | None = None,
) -> Census:
    """The census with what the machine's CPUs did from the first step on, for so long; unchanged without telemetry. What the
    process computes after its last step is in no count of its own, and would be another program's.

    `num_cpus`: all of the machine, whether or not this process may use them.
    """
    num_cpus = num_cpus or os.cpu_count()
    if not samples or census.cpu_busy is None or not num_cpus:
        return census
    since = samples[0].sampled_at + (census.start_s or 0.0)
    busy = [
        each.cpu_fraction
        for each in samples
        if since <= each.sampled_at <= since + stepping_s and each.cpu_fraction is not None
    ]
    if len(busy) < FEWEST_SAMPLES:
        return census
    mean = min(fmean(busy), 1.0)
    return replace(
        census,
        machine_busy=mean,
        foreign_busy=max(mean - census.cpu_busy / num_cpus, 0.0),
    )


def with_throttling(census: Census, samples: Sequence[TelemetrySample]) -> Census:
    """The census with what NVML said of its GPU; unchanged where it said too little.

    Only seconds in which the GPU computed count: an idle one lowers its clock by itself.
    """
    seen = [_gpu(census, sample) for sample in samples]
    busy = [gpu for gpu in seen if gpu is not None and (gpu.busy_fraction or 0.0) > 0.0]
    if len(busy) < FEWEST_GPU_SAMPLES:
        return census
    held = [gpu for gpu in busy if gpu.throttled_by]
    clocks = [gpu.sm_clock_mhz for gpu in held if gpu.sm_clock_mhz]
    free = [gpu.sm_clock_mhz for gpu in busy if gpu not in held and gpu.sm_clock_mhz]
    drop = None
    if clocks and free:
        drop = max(1 - median(clocks) / median(free), 0.0)
    return replace(
        census,
        throttled_fraction=len(held) / len(busy),
        throttled_by=tuple(sorted({why for gpu in held for why in gpu.throttled_by})),
        clock_drop_fraction=drop,
    )


def _gpu(census: Census, sample: TelemetrySample) -> GpuSample | None:
    """The GPU that the process computed on; by its unique id only, numbers differ between tools."""
    if census.device_uuid is None:
        return None
    for gpu in sample.gpus:
        if gpu.uuid is not None and census.device_uuid.removeprefix("GPU-") in gpu.uuid:
            return gpu
    return None
