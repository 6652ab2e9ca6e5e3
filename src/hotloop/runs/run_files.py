"""Reads the files of a run one by one, and keeps what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from hotloop.core.census import Census
from hotloop.core.command_run import CommandRun
from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.files import read_json
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.settings import Settings
from hotloop.core.step import readable_steps
from hotloop.core.untrusted import TORN, object_lines
from hotloop.doctor.collect import collect
from hotloop.trial.measure import MEASUREMENT_FILE, load_measurement

T = TypeVar("T")

State = Literal["running", "finished", "ended_early", "stopped", "recorded"]
"""`ended_early`: by itself, for `eval.patience`. `recorded`: steps are there, and not how many there should be."""

MAX_LINES_NAMED = 3
"""Damaged lines of one file that are named; the rest are counted."""


class RunFiles:
    """Reads files one by one and keeps what is wrong with them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.problems: list[HotloopError] = []
        self.notes: list[str] = []

    def stored(self, name: str, kind: type[T]) -> T | None:
        path = self.directory / name
        return self.tried(lambda: read_json(path, kind)) if path.is_file() else None

    def tried(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except HotloopError as error:
            self.problems.append(error)
            return None

    def made_of_lines(
        self, path: Path, make: Callable[[dict[str, Any]], T], *, finite: bool = True
    ) -> tuple[list[T], dict[int, str]]:
        """What `make` returns for each line's object, and what is wrong with each other line, by its number."""
        made: list[T] = []
        damaged: dict[int, str] = {}
        if not path.is_file():
            return made, damaged
        try:
            for number, found in object_lines(path, finite=finite):
                if isinstance(found, str):
                    damaged[number] = found
                    continue
                try:
                    made.append(make(found))
                except (ValueError, TypeError, KeyError, OverflowError) as error:
                    damaged[number] = f"{type(error).__name__}: {error}"
        except OSError as error:
            self.problems.append(UsageError(f"cannot read: {error.strerror}", where=str(path)))
        return made, damaged

    def damaged_lines(self, path: Path, lines: dict[int, str], what: str) -> None:
        """One problem per damaged line, up to a few; a torn last line is only a note."""
        torn = [number for number, why in lines.items() if why == TORN]
        for number in torn:
            self.notes.append(f"{path.name}:{number}: the last line is {TORN}; it is left out")
        wrong = {number: why for number, why in lines.items() if number not in torn}
        rest = len(wrong) - MAX_LINES_NAMED
        for place, (number, why) in enumerate(list(wrong.items())[:MAX_LINES_NAMED]):
            more = ""
            if place == MAX_LINES_NAMED - 1 and rest > 0:
                more = f" (and {rest} more damaged {'line' if rest == 1 else 'lines'})"
            self.problems.append(
                UsageError(
                    f"damaged {what}: {why}{more}",
                    where=f"{path}:{number}",
                    do="delete that line; the others are read as they are",
                )
            )


def measurement_of(
    files: RunFiles,
    settings: Settings[Any] | None,
    environment: Environment | None,
    command_run: CommandRun | None = None,
) -> Measurement | None:
    """The stored measurement, or one built from what a training run writes as it goes."""
    directory = files.directory
    path = directory / MEASUREMENT_FILE
    if path.is_file() and not goes_on(command_run):
        stored = files.tried(lambda: load_measurement(path))  # with losses that are no numbers
        if stored is not None:
            return stored
    if command_run is not None:
        return _measurement_of_command(files, command_run, environment)
    steps = next(
        (p for n in ("steps.jsonl", "steps-0.jsonl") if (p := directory / n).is_file()), None
    )
    if steps is None:
        return None
    records, damaged = files.tried(lambda: readable_steps(steps)) or ([], {})
    files.damaged_lines(steps, damaged, "step record")
    warmup = sum("warmup" in record.tags for record in records)
    planned = settings.config.train.steps if settings else len(records)
    return Measurement(
        arm="train",
        command=(),
        plan=Plan(warmup_steps=warmup, steps=max(planned - warmup, 0), timeout_s=0.0),
        environment=environment or _unknown_environment(),
        records=tuple(records),
        census=files.stored("census.json", Census),
    )


def goes_on(command_run: CommandRun | None) -> bool:
    """True if processes of a command outlived it: what was judged at its end may not be all."""
    return command_run is not None and bool(command_run.left_running)


def _measurement_of_command(
    files: RunFiles, command_run: CommandRun, environment: Environment | None
) -> Measurement:
    """The steps so far of a command that still runs, or whose doctor was ended before it."""
    found = collect(files.directory, command_run, environment or _unknown_environment())
    files.problems.extend(found.problems)
    for path, lines in found.damaged_steps:
        files.damaged_lines(path, lines, "step record")
    return found.measurement


def _unknown_environment() -> Environment:
    return Environment(
        device="not recorded",
        num_devices=1,
        cpu_model=None,
        num_cpus=1,
        cpu_quota=1.0,
        memory_limit_bytes=None,
        platform="not recorded",
        kernel=None,
        python="not recorded",
        torch=None,
        cuda=None,
        driver=None,
        hotloop="not recorded",
    )


def evaluations(files: RunFiles) -> tuple[dict[str, Any], ...]:
    """`evals.jsonl`. A torn last line was being written when the run ended."""
    path = files.directory / "evals.jsonl"
    evals, damaged = files.made_of_lines(path, _evaluation, finite=False)
    files.damaged_lines(path, damaged, "evaluation")
    return tuple(evals)


def _evaluation(value: dict[str, Any]) -> dict[str, Any]:
    """The same with its numbers as numbers."""
    value = {**value, "step": int(value["step"]), "loss": float(value["loss"])}
    if "averaged_loss" in value:
        value["averaged_loss"] = float(value["averaged_loss"])
    return value
