"""From settings to a finished run directory: prepare the data, resolve `auto`, continue or begin.

A rollback (`stability.spikes: rollback`) is a resume inside the process: the newest checkpoint that was due is
restored, the data since are passed over, and training goes on. `steps.jsonl` then tells of the steps that led to the weights, as
after any resume; `rollbacks.jsonl` tells what was undone and why. Where a rollback leads is a function of the
checkpoint and the data alone: a run killed after one and started again does the same once more.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hotloop.checkpoint import store
from hotloop.checkpoint.entries import held_out_losses
from hotloop.checkpoint.notices import watch
from hotloop.checkpoint.upload import Uploader
from hotloop.core.config import LoopConfig
from hotloop.core.errors import Interrupted
from hotloop.core.file_locks import locked
from hotloop.core.files import ROLLBACKS_FILE, storing, write_atomically, write_json
from hotloop.core.judgement import MODEL_FILE
from hotloop.core.measurement import Environment
from hotloop.core.progress import Progress, silent
from hotloop.core.ranks import Ranks
from hotloop.core.settings import C, Settings, store_settings
from hotloop.core.step import StepRecord, read_steps, steps_name, steps_of_ranks
from hotloop.data.prepared import Corpora
from hotloop.data.streaming import Growing
from hotloop.hardware.device import pick_device, read_environment, read_machine
from hotloop.hardware.telemetry import telemetry
from hotloop.models.shape import model_flops
from hotloop.optimizations.catalogue import resolve
from hotloop.probe.memory_watch import MemoryWatch
from hotloop.probe.recorder import keep_steps_before
from hotloop.train.batches import nothing_held_out, text_left_out
from hotloop.train.continuation import restore, resume
from hotloop.train.evaluate import Evaluation, is_evaluated, read_evaluations
from hotloop.train.interruption import FIRST_STEP, StopNow, StopRequest
from hotloop.train.loop import save, train
from hotloop.train.meter import Meter, live_of
from hotloop.train.opened_text import opened_text
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import Run, build_run
from hotloop.train.same_run import (
    agreed_settings,
    as_it_began,
    claim_place,
    refuse_another_run,
    refuse_differences,
    refuse_uneven,
)
from hotloop.train.sample_log import SampleLog
from hotloop.train.save_times import SaveTimes
from hotloop.train.session_log import SessionLog
from hotloop.train.stability import RollBack, Stability
from hotloop.train.trackers import refuse_missing_trackers, trackers
from hotloop.train.update import refuse_waiting_update
from hotloop.train.work import HeldOut


@dataclass(frozen=True, slots=True)
class Finished:
    """What `hotloop train` found."""

    steps: int
    loss: float | None
    held_out_loss: float | None
    averaged_held_out_loss: float | None
    """With the averaged weights; `None` without `averaging`."""
    tokens_per_s: float | None
    """Median over the steps of this process without a tag; `None` when it made none."""
    num_skipped: int
    """Updates left out, of all the steps."""
    num_spikes: int
    num_rollbacks: int
    run: str
    not_uploaded: str | None = None
    """Why the newest checkpoint is not at `checkpoint.upload`; `None` if it is, or if none is asked for."""
    schema: str = "hotloop.train/1"


@dataclass(frozen=True, slots=True)
class Steps:
    """Which steps a call makes, and who hears of it."""

    stop_after: int | None = None
    from_step: int | None = None
    stretch: bool = False
    """These two are those of `continuation.resume`."""
    progress: Progress = silent
    warn: Callable[[str], None] = lambda message: None
    at_start: Callable[[HeldOut], None] | None = None
    """Of a fine-tuning: gets how the model does on the held-out examples before any step."""
    record_samples: bool = False


def start(
    settings: Settings, directory: Path, *, rendezvous: Rendezvous | None = None, **given: Any
) -> Finished:
    """Train in `directory`, continuing what is there. Raises `HotloopError` kinds only for user errors.

    A directory that holds a run of other settings or other data is refused, never overwritten.
    given: fields of `Steps`. With a `rendezvous` of several processes the first one writes; the others write their own step
    records alone.
    """
    steps = Steps(**given)
    stop_after, progress, warn = steps.stop_after, steps.progress, steps.warn
    rendezvous = rendezvous or Rendezvous()
    ranks = rendezvous.ranks
    device = pick_device(settings.config.train.device, ranks)
    settings, notes = resolved(as_it_began(settings, directory), device, ranks, warn)
    config = settings.config
    uploader = None
    if config.checkpoint.upload is not None and stop_after is None and ranks.is_first:
        uploader = Uploader(config.checkpoint, config.name, warn)
        uploader.remote.listed(attempts=2)  # before the text is opened, which may take long
    memory = MemoryWatch(directory, str(ranks.rank))
    memory.device = device  # before there is a model: moving it there may be refused
    with (
        opened_text(config, rendezvous, progress=progress, warn=warn) as text,
        locked(directory, wanted=ranks.is_first),
        uploader or nullcontext(),
        memory.watching(thread=stop_after is None),
    ):
        refuse_other_runs(directory, config, text.fingerprint, device, rendezvous)
        memory.begin()
        group = rendezvous.group(device, config)
        run = build_run(config, text, directory, device, group, progress=progress)
        follow(memory, run)
        if uploader is not None:
            claim_place(uploader.remote, config, text.fingerprint, device)
            run.uploader = uploader
        left_out = text_left_out(config, text)
        for note in left_out:
            warn(note)
        finished = conduct(
            settings,
            run,
            describe=lambda environment: _describe(settings, run, text, environment),
            nothing_held_out=lambda: nothing_held_out(config, text),
            notes=notes,
            steps=steps,
        )
        if isinstance(text, Growing):  # how much text there is was not known before
            for note in text_left_out(config, text)[len(left_out) :]:
                warn(note)
            evaluates = config.eval.every_steps > 0 and stop_after is None
            if run.work.has_held_out and finished.held_out_loss is None and evaluates:
                warn(nothing_held_out(config, text))
    return finished


def conduct(
    settings: Settings[Any],
    run: Run,
    *,
    describe: Callable[[Environment], None],
    nothing_held_out: Callable[[], str],
    notes: tuple[str, ...],
    steps: Steps,
) -> Finished:
    """Continue or begin a run that is built, train it to its end, and say what came of it.

    `describe` writes what the run is into its directory; `nothing_held_out` says why nothing is evaluated.
    """
    config, directory, ranks = run.config, run.directory, run.group.ranks
    stop_after, warn = steps.stop_after, steps.warn
    for note in resume(run, from_step=steps.from_step, stretch=steps.stretch):
        warn(note)
    take_up(run)
    made = run.first_step >= config.train.steps or run.enough(run.first_step)
    if not made and run.first_step and steps.from_step is None:
        warn(f"continues from step {run.first_step} of {config.train.steps}")
    if made and is_evaluated(run):  # nothing to do, and nothing to write over
        warn(f"already finished: {run.first_step} of {config.train.steps} steps")
        return as_it_finished(run)
    evaluates = config.eval.every_steps > 0 and stop_after is None
    if not run.work.has_held_out and evaluates:
        warn(nothing_held_out())
    environment = read_environment(str(run.device))
    begin_records(run, measuring=stop_after is not None)
    if ranks.is_first:
        describe(environment)
    if steps.record_samples:
        run.samples = SampleLog(directory, ranks)
        run.samples.begin(run.first_step)
    last = config.train.steps if stop_after is None else min(stop_after, config.train.steps)
    # Of several processes the first one tells; the others are measured without.
    untold = stop_after is not None or not ranks.is_first
    with (
        trackers(settings, run, measuring=untold, warn=warn) as senders,
        telemetry(directory, wanted=not untold, warn=warn) as newest,
        run.sessions.lasting() if run.sessions is not None else nullcontext(),
    ):
        meter = Meter(steps.progress, total=last, live=live_of(run, environment, newest))
        loss, evaluation = train_to_the_end(
            run,
            stop_after=stop_after,
            observers=(meter, run.save_times, run.save_mode, *senders),
            notes=notes,
            warn=warn,
        )
    if made:  # all but the last evaluation
        return as_it_finished(run)
    if evaluation is not None and run.enough(evaluation.step):
        last = evaluation.step
        warn(
            f"ended early, after {last} of {config.train.steps} steps: `{run.metric}` no longer gets better"
        )
        if last == run.first_step:  # that evaluation was all that was left to make
            return as_it_finished(run)
    return _finished(run, last, loss, evaluation, meter)


def begin_records(run: Run, *, measuring: bool) -> None:
    """Of this process; what was recorded of steps that are made again goes, before `config.yaml` is written anew."""
    ranks = run.group.ranks
    if ranks.is_first and not measuring:
        run.sessions = SessionLog(run.directory)
        run.sessions.started(run.first_step, run.steps_file)
    run.save_times = SaveTimes(run)
    keep_steps_before(run.steps_file, run.first_step)
    if not ranks.is_first:
        return
    for rank, path in steps_of_ranks(run.directory).items():
        if rank >= ranks.num_ranks:  # takes part no longer; the others drop their own
            keep_steps_before(path, run.first_step)


def follow(memory: MemoryWatch, run: Run) -> None:
    """Have the memory of this run watched."""
    frozen = sum(p.nbytes for p in run.model.parameters() if not p.requires_grad)

    def beside() -> dict[str, int]:
        held = [t for each in list(run.snapshot.values()) for t in each.values()]
        copied = sum(t.nbytes for t in held if t.device.type == run.device.type)
        averaged = sum(p.nbytes for p in run.model.parameters()) if run.average is not None else 0
        return {"frozen weights": frozen, "averaged weights": averaged, "copy of a save": copied}

    memory.device, memory.beside = run.device, beside
    memory.optimizers = lambda: (run.optimizer,)
    memory.step = lambda: max(run.watchdog.step, run.first_step)
    memory.phase = lambda: run.clock.innermost


def take_up(run: Run) -> None:
    """Begin to upload the newest checkpoint where that was cut short."""
    newest = [each for each in store.entries(run.checkpoints) if each.step == run.first_step]
    if run.uploader is not None and newest:
        losses = held_out_losses(run.evals_file, run.metric)
        good_until = run.stability.good_until(run.first_step)
        run.uploader.take(run.checkpoints / newest[-1].name, losses, good_until)


def resolved(
    settings: Settings[C], device: torch.device, ranks: Ranks, warn: Callable[[str], None]
) -> tuple[Settings[C], tuple[str, ...]]:
    """Settings without `auto`, and the notes on them that `warn` was given. Raises `UsageError` for what cannot be trained here."""
    machine = read_machine(device, ranks, compiles=settings.config.may_compile)
    settings, notes = resolve(settings, machine)
    refuse_uneven(settings, ranks)
    if settings.config.train.gradient_compression != "none" and ranks.num_ranks == 1:
        notes += ("train.gradient_compression has no effect: one process sends nothing",)
    for note in notes:
        warn(note)
    refuse_missing_trackers(settings.config)
    refuse_waiting_update(settings.config, device)
    return settings, notes


def refuse_other_runs(
    directory: Path,
    config: LoopConfig,
    fingerprint: str,
    device: torch.device,
    rendezvous: Rendezvous,
) -> None:
    """Raises `UsageError` where `directory` holds another run, or another rank has other settings."""
    agreed = agreed_settings(config, device, fingerprint)

    def take() -> dict[str, Any]:
        refuse_another_run(directory, config, fingerprint, device)
        return agreed

    refuse_differences(rendezvous.ranks, agreed, rendezvous.first(take))


def _describe(
    settings: Settings, run: Run, text: Corpora | Growing, environment: Environment
) -> None:
    paths = [text.path] if isinstance(text, Growing) else [each.path for each in text.members]
    where = os.pathsep.join(str(path.resolve()) for path in paths)
    describe(settings, run.directory, where, text.fingerprint, text.tokenizer_json, environment)
    assert run.shape is not None
    write_json(run.directory / MODEL_FILE, model_flops(run.shape))


def describe(
    settings: Settings[Any],
    directory: Path,
    data: str,
    fingerprint: str,
    tokenizer: bytes | None,
    environment: Environment,
) -> None:
    """Write what a run is into its directory: settings, data, tokenizer, machine."""
    store_settings(settings, directory / "config.yaml")
    described = {"path": data, "manifest_sha256": fingerprint}
    write_atomically(directory / "data.json", json.dumps(described, indent=1).encode())
    if tokenizer is not None:
        write_atomically(directory / "tokenizer.json", tokenizer)
    write_json(directory / "environment.json", environment)


def as_it_finished(run: Run) -> Finished:
    """What an earlier process found, read from the files it left."""
    records = list(read_steps(run.directory / steps_name(0)))
    evaluations = read_evaluations(run)
    meter = Meter(silent, total=len(records))
    for record in records:
        meter(record)
    return _finished(
        run,
        run.first_step,
        records[-1].loss if records else None,
        evaluations[-1] if evaluations else None,
        meter,
    )


def _finished(
    run: Run, steps: int, loss: float | None, evaluation: Evaluation | None, meter: Meter
) -> Finished:
    """Its upload is waited for: whether the newest checkpoint is there is part of it."""
    if run.uploader is not None:
        run.uploader.finish()
    return Finished(
        steps=steps,
        loss=loss,
        held_out_loss=evaluation.loss if evaluation else None,
        averaged_held_out_loss=evaluation.averaged_loss if evaluation else None,
        tokens_per_s=meter.tokens_per_s(),
        num_skipped=run.stability.num_skipped,
        num_spikes=run.stability.num_spikes,
        num_rollbacks=run.stability.num_rollbacks,
        run=str(run.directory),
        not_uploaded=run.uploader.problem if run.uploader is not None else None,
    )


def train_to_the_end(
    run: Run,
    *,
    stop_after: int | None,
    observers: tuple[Callable[[StepRecord], None], ...],
    notes: tuple[str, ...],
    warn: Callable[[str], None],
) -> tuple[float | None, Evaluation | None]:
    """`train`, and again from the checkpoint before it for each spike that it goes back from."""
    if run.group.ranks.is_first:
        keep_rollbacks(run.directory, run.stability.num_rollbacks)
    if run.config.stability.spikes == "rollback" and not run.first_step and stop_after is None:
        save(run, 0)  # something to go back to before the first save is due
    with StopRequest(run) as stop:
        if stop_after is None:
            watch(run.config.checkpoint.notices, stop.closed, stop.tell, warn)
        while True:
            try:
                return train(
                    run, stop=stop, stop_after=stop_after, observers=observers, notes=notes
                )
            except StopNow:
                what = f"{stop.reason}{FIRST_STEP}"
                raise Interrupted(what, where=str(run.directory), do=stop.continues) from None
            except RollBack as found:
                run.saver.finish()
                warn(roll_back(run, found))
            finally:
                run.saver.wait()  # the directory may be another process's after this
                if (lost := run.saver.error) is not None:
                    warn(f"the last checkpoint could not be saved: {lost}")
                if run.uploader is not None:  # it is waited for when nothing here looks at the time
                    run.uploader.deadline = stop.deadline


def roll_back(run: Run, found: RollBack) -> str:
    """Restore the checkpoint before the spike and pass over the data up to it. Returns what was done, in words."""
    before, run.stability = run.stability, Stability(run.config, run.device)
    due = before.due_before(found.step)

    def chosen() -> store.Checkpoint | None:
        if run.uploader is not None and due not in store.steps(run.checkpoints):
            run.uploader.fetch(run.checkpoints, step=due)
        return store.latest(run.checkpoints, before=due + 1)[0] or store.latest(run.checkpoints)[0]

    newest = run.group.decided(chosen)
    assert newest is not None, "one was saved before the first step"
    restore(run, newest)
    run.stability.went_back(from_step=found.step, to_step=run.first_step, before=before)
    if run.group.ranks.is_first:  # all ranks see the same spike and go back alike
        record_rollback(run, found)
    return (
        f"step {found.step} is a spike ({found.spike}): back to step {run.first_step}, and over the "
        f"data since; rollback {run.stability.num_rollbacks} of {run.config.stability.max_rollbacks}"
    )


def record_rollback(run: Run, found: RollBack) -> None:
    """Add a line to `rollbacks.jsonl`. Raises `EnvironmentFailed` on a full disk."""
    undone = [r for r in read_steps(run.steps_file) if r.step >= run.first_step]
    lost_s = round(math.fsum(record.wall_s for record in undone), 3)
    entry = {
        "step": found.step,
        "back_to": run.first_step,
        "why": str(found.spike),
        "lost_steps": len(undone),
        "lost_s": lost_s,
        "steps_passed_over": run.stability.steps_passed_over,
    }
    if run.sessions is not None:
        run.sessions.rolled_back(lost_s)
    path = run.directory / ROLLBACKS_FILE
    with storing(path, "record a rollback"), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def keep_rollbacks(directory: Path, count: int) -> None:
    """Drop all but the first `count`: a resumed run goes back again where it did after its checkpoint."""
    path = directory / ROLLBACKS_FILE
    if not path.exists():
        return
    with storing(path, "read the rollbacks"):
        lines = path.read_bytes().splitlines(keepends=True)
    write_atomically(path, b"".join(lines[:count]))
