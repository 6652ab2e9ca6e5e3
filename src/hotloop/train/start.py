"""From settings to a finished run directory: prepare the data, resolve `auto`, continue or begin."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.config import RunConfig
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import storage_error, write_atomically, write_json
from hotloop.core.progress import Progress, silent
from hotloop.core.settings import Settings, load_settings, store_settings
from hotloop.core.step import StepRecord, read_steps
from hotloop.data.cache import ensure_prepared
from hotloop.data.prepared import open_prepared
from hotloop.hardware.device import pick_device, read_machine
from hotloop.hardware.environment import read_environment
from hotloop.hardware.telemetry import telemetry
from hotloop.optimizations.resolve import resolve
from hotloop.train.evaluate import read_evaluations
from hotloop.train.loop import train
from hotloop.train.run import Run, build_run, resume
from hotloop.train.tensorboard import event_writer, refuse_missing_tensorboard

_FREE_KEYS = (
    "name",
    "eval.",
    "checkpoint.",
    "logging.",
    "data.verify",
    "train.num_threads",
    "data.source",
    "data.prepared",
)
"""Keys that may differ when a run is continued: none of them changes what is learned. The data's
content is compared by its own fingerprint."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What `hotloop train` found."""

    steps: int
    loss: float | None
    held_out_loss: float | None
    tokens_per_s: float | None
    """Median over the steps of this process without a tag; `None` when it made none."""
    run: str
    schema: str = "hotloop.train/1"


def start(
    settings: Settings,
    directory: Path,
    *,
    stop_after: int | None = None,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Finished:
    """Train in `directory`, continuing what is there. Raises `HotloopError` kinds only for user errors.

    A directory that holds a run of other settings or other data is refused, never overwritten.
    """
    device = pick_device(settings.config.train.device)
    settings, notes = resolve(settings, read_machine(device))
    for note in notes:
        warn(note)
    config = settings.config
    refuse_missing_tensorboard(config)
    data = Path(config.data.prepared) if config.data.prepared else None
    if data is None:
        assert config.data.source is not None
        data = ensure_prepared(config.data.source, config.data.tokenizer, progress=progress)
    prepared = open_prepared(data, verify=config.data.verify)
    fingerprint = hashlib.sha256((data / "manifest.json").read_bytes()).hexdigest()
    with locked(directory):
        refuse_another_run(directory, config, fingerprint)
        run = build_run(config, prepared, directory, device)
        for problem in resume(run):
            warn(
                f"a newer checkpoint cannot be used, continuing from step {run.first_step}: {problem}"
            )
        if run.first_step >= config.train.steps:  # nothing to do, and nothing to write over
            warn(f"already finished: {run.first_step} of {config.train.steps} steps")
            return as_it_finished(run)
        if run.held_out is None and config.eval.every_steps and stop_after is None:
            warn("nothing is evaluated: the held-out text is shorter than one window")
        store_settings(settings, directory / "config.yaml")
        described = {"path": str(data.resolve()), "manifest_sha256": fingerprint}
        write_atomically(directory / "data.json", json.dumps(described, indent=1).encode())
        write_atomically(directory / "tokenizer.json", prepared.tokenizer_path.read_bytes())
        write_json(directory / "environment.json", read_environment(str(device)))
        last = config.train.steps if stop_after is None else min(stop_after, config.train.steps)
        meter = Meter(progress, total=last)
        with (
            event_writer(config, directory, measuring=stop_after is not None) as events,
            telemetry(directory, wanted=stop_after is None, warn=warn),
        ):
            outcome = train(run, stop_after=stop_after, observers=(meter, *events), notes=notes)
    return Finished(
        steps=outcome.steps,
        loss=outcome.loss,
        held_out_loss=outcome.evaluation.loss if outcome.evaluation else None,
        tokens_per_s=meter.tokens_per_s(),
        run=str(directory),
    )


def as_it_finished(run: Run) -> Finished:
    """What an earlier process found, read from the files it left."""
    records = list(read_steps(run.steps_file))
    evaluations = read_evaluations(run)
    meter = Meter(silent, total=len(records))
    for record in records:
        meter(record)
    return Finished(
        steps=run.first_step,
        loss=records[-1].loss if records else None,
        held_out_loss=evaluations[-1].loss if evaluations else None,
        tokens_per_s=meter.tokens_per_s(),
        run=str(run.directory),
    )


class Meter:
    """An observer that keeps the rate and shows it, at most five times a second."""

    def __init__(self, progress: Progress, *, total: int) -> None:
        self._progress = progress
        self._total = total
        self._shown_at = 0.0
        self._rates: list[float] = []

    def __call__(self, record: StepRecord) -> None:
        if record.tokens and record.wall_s > 0 and not record.tags:
            self._rates.append(record.tokens / record.wall_s)
        now = time.monotonic()
        if now - self._shown_at < 0.2 and record.step + 1 < self._total:
            return
        self._shown_at = now
        speed = f"{statistics.median(self._rates[-20:]):,.0f} tokens/s, " if self._rates else ""
        loss = f"loss {record.loss:.3f}" if record.loss is not None else ""
        self._progress("training", record.step + 1, self._total, speed + loss)

    def tokens_per_s(self) -> float | None:
        return statistics.median(self._rates) if self._rates else None


def refuse_another_run(directory: Path, config: RunConfig, fingerprint: str) -> None:
    """Raises `UsageError` when `directory` holds a run of other settings or of other data."""
    stored = directory / "config.yaml"
    if not stored.exists():
        return
    before, now = load_settings(stored).config.flat(), config.flat()
    for key, value in now.items():
        if value != before.get(key) and not key.startswith(_FREE_KEYS):
            raise UsageError(
                f"this directory holds a run with `{key}: {before.get(key)}`, not {value}",
                where=str(directory),
                do="choose another --out, or the settings of that run",
            )
    try:
        described = json.loads((directory / "data.json").read_bytes())["manifest_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        described = None  # killed between the two files, before the first step
    if described not in (None, fingerprint):
        raise UsageError(
            "this directory holds a run on other data",
            where=str(directory),
            do="choose another --out, or the data of that run",
        )


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One process trains in a directory at a time. The lock goes with the process, however it ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / ".lock").open("w")
    except OSError as error:
        raise storage_error(error, directory, "make the run directory") from error
    with file:
        try:
            import fcntl
        except ImportError:  # Windows: no advisory locks of this kind
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EnvironmentFailed(
                "another process is training in this directory",
                where=str(directory),
                do="wait for it, or choose another --out",
            ) from error
        except OSError:
            pass  # a file system without locks: nothing to go by
        yield
