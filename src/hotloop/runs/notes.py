"""What a reader of a run should know: what is missing, unfinished, or went wrong on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hotloop.core.command_run import CommandRun
from hotloop.core.errors import UsageError
from hotloop.core.files import ROLLBACKS_FILE
from hotloop.core.ledger import LEDGER_FILE
from hotloop.core.measurement import Measurement
from hotloop.core.settings import Settings
from hotloop.core.step import StepRecord
from hotloop.core.telemetry import TelemetrySample
from hotloop.core.untrusted import TORN
from hotloop.doctor.collect import backwards_seen, has_stepped, is_attached, probe_notes
from hotloop.doctor.directory import TRIALS
from hotloop.report.examined import why_no_step
from hotloop.report.words import trouble
from hotloop.runs.run_files import RunFiles, State


def num_done(records: Sequence[StepRecord]) -> int:
    """Steps done, those of earlier processes included."""
    return 1 + max((record.step for record in records), default=-1)


def note_what_is_missing(
    files: RunFiles,
    settings: Settings[Any] | None,
    measurement: Measurement | None,
    samples: Sequence[TelemetrySample],
    state: State,
) -> None:
    directory, notes = files.directory, files.notes
    is_training = settings is not None or (directory / "steps.jsonl").is_file()
    if is_training and (measurement is None or measurement.arm == "train"):
        done = num_done(measurement.records) if measurement is not None else 0
        if settings is None and not (directory / "config.yaml").is_file():
            notes.append("config.yaml is missing: settings and planned steps are not known")
        elif state == "ended_early":
            notes.append("the same `hotloop train` with a larger `eval.patience` continues")
        elif settings is not None and done < settings.config.train.steps:
            planned = settings.config.train.steps
            then = (
                "it is still training, or was until a few seconds ago"
                if state == "running"
                else "run the same `hotloop train` again to continue"
            )
            notes.append(f"unfinished: {done} of {planned} steps; {then}")
        elif state == "stopped":
            notes.append(
                f"unfinished: all {done} steps were made, but not saved; "
                "run the same `hotloop train` again to continue from the newest checkpoint"
            )
        if not (directory / "environment.json").is_file():
            notes.append("environment.json is missing: device and versions are not known")
        if not (directory / "census.json").is_file():
            when = (
                "it is written at the end"
                if state == "running"
                else "the run did not end by itself"
            )
            notes.append(f"census.json is missing ({when}): dtypes and kernels are not known")
        if not samples:
            notes.append(
                "no telemetry: what CPU, memory, disks and GPUs did over time is not known"
            )
    if measurement is None:
        if is_training:
            notes.append("no step has been recorded yet")
        return
    if not measurement.records and not measurement.samples:
        notes.append("no step has been recorded yet")
    if any(
        r.loss is not None and not math.isfinite(r.loss) and "skipped" not in r.tags
        for r in measurement.records
    ):
        notes.append("a loss was not finite: the run diverged")
    notes.extend(_stability_notes(files, measurement.records))
    if measurement.census is not None:
        notes.extend(measurement.census.notes)


def note_command(
    files: RunFiles, run: CommandRun, measurement: Measurement | None, state: State
) -> None:
    """Notes on somebody else's command: what the probe could not do, and why there may be no step."""
    if run.ended is None:
        files.notes.append(
            "the command still runs: this is what was seen so far"
            if state == "running"
            else "hotloop was ended before the command: this is what was seen until then"
        )
    found = probe_notes(files.directory)
    files.notes.extend(found)
    if measurement is None or not measurement.records:
        files.notes.extend(
            why_no_step(
                attached=is_attached(files.directory),
                told=bool(found),
                stepped=has_stepped(files.directory),
                backwards=backwards_seen(files.directory),
                run=run,
            )
        )
    if measurement is not None and measurement.census is not None:
        files.notes.extend(measurement.census.notes)


def note_fixes(files: RunFiles) -> None:
    """A note on trials of fixes that did not end."""
    directory = files.directory
    if (directory / TRIALS).is_dir() and not (directory / LEDGER_FILE).exists():
        files.notes.append(
            "fixes or values were being tried, and that did not end: the same command with "
            f"`--out {directory}` goes on"
        )


def _stability_notes(files: RunFiles, records: Sequence[StepRecord]) -> list[str]:
    """What the training saw go wrong, and what rollbacks undid."""
    notes = []
    for tag, name in (("spike", "spikes"), ("skipped", "skipped")):
        steps = [record.step for record in records if tag in record.tags]
        if steps:
            first = f"at step {steps[0]}" if len(steps) == 1 else f"the first at step {steps[0]}"
            notes.append(f"{trouble(**{name: len(steps)})} ({first})")
    path = files.directory / ROLLBACKS_FILE
    rollbacks, damaged = files.made_of_lines(path, _rollback_note)
    for number, why in damaged.items():
        if why != TORN:
            files.problems.append(UsageError(f"damaged rollback: {why}", where=f"{path}:{number}"))
    return notes + rollbacks


def _rollback_note(entry: dict[str, Any]) -> str:
    return (
        f"rollback at step {int(entry['step'])}, back to {int(entry['back_to'])}: "
        f"{int(entry['lost_steps'])} steps and {float(entry['lost_s']):.1f} s undone "
        f"({entry['why']})"
    )
