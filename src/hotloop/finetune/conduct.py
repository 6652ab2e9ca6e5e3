"""What every fine-tuning does around its steps, whatever it learns: from settings to the model that is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError
from torch import nn

from hotloop.checkpoint import state, store
from hotloop.checkpoint.entries import best_step, held_out_losses
from hotloop.checkpoint.upload import Uploader
from hotloop.core.errors import UsageError
from hotloop.core.file_locks import locked
from hotloop.core.files import write_json
from hotloop.core.finetune_config import FinetuneLoop
from hotloop.core.settings import Settings
from hotloop.core.task_scores import TASK_FILE, TaskScores
from hotloop.finetune.compiled_attention import compile_now
from hotloop.finetune.encoder_layer import narrow_gradients
from hotloop.finetune.work import steps_per_epoch
from hotloop.optimizations.compiling.trainer import parts_uncompiled
from hotloop.probe.memory_watch import MemoryWatch
from hotloop.report.numbers import counted
from hotloop.train.evaluate import Evaluation, read_evaluations
from hotloop.train.interruption import StopRequest
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import Run, assemble, set_up_process, takes_narrow_gradients
from hotloop.train.same_run import as_it_began, claim_place
from hotloop.train.start import Finished, conduct, describe, follow, refuse_other_runs, resolved
from hotloop.train.start import Steps as Steps
from hotloop.train.work import Work

F = TypeVar("F", bound=FinetuneLoop)
MODEL_DIRECTORY, MERGED_DIRECTORY = "model", "merged"
CHECKED = 4
"""Examples on which layouts and the exported model are compared."""


@dataclass(frozen=True, slots=True)
class Finetuned:
    training: Finished
    scores: TaskScores | None
    """What `task.json` holds; `None` where nothing was held out, or it was only measured."""
    model: str | None
    """Directory of the model, as transformers has it; `None` where it was only measured."""
    merged: str | None = None
    """Where `model` is an adapter: that of the model with the adapter in its weights, if asked for."""
    is_adapter: bool = False
    schema: str = "hotloop.finetune/1"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model and its examples, before the first step."""

    model: nn.Module
    work: Work
    fingerprint: str
    """Of data, model and layout: a run is gone on with where it is the same."""
    data: str
    """Where the examples are from."""
    tokenizer_json: bytes | None
    lines: list[str]
    """What is trained on, in words."""
    keep: Callable[[Run, Evaluated], Finetuned]
    """Writes what a finished run leaves, with the weights that are kept in place."""
    why_not_evaluated: str = "`data.held_out` leaves no example"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The evaluation that is told, and the end."""

    training: Finished
    chosen: Evaluation | None
    """Of the weights that are kept; `None` where nothing was held out."""
    stopped_early: bool = False


def conduct_finetuning(
    settings: Settings[F],
    device: torch.device,
    directory: Path,
    prepare: Callable[[F], Prepared],
    steps: Steps,
) -> Finetuned:
    """From settings to what is kept, whatever is learned. `prepare` gets a config without `auto`."""
    alone = Rendezvous()
    settings, notes = resolved(as_it_began(settings, directory), device, alone.ranks, steps.warn)
    config = settings.config
    uploader = None
    if config.checkpoint.upload is not None and steps.stop_after is None:
        uploader = Uploader(config.checkpoint, config.name, steps.warn)
        uploader.remote.listed(attempts=2)
    set_up_process(config, device)
    found = prepare(config)
    fingerprint = hashlib.sha256(found.fingerprint.encode()).hexdigest()
    memory = MemoryWatch(directory, "0")
    memory.device, memory.start = device, "start"  # with a model and examples
    with (
        locked(directory, wanted=True),
        uploader or nullcontext(),
        memory.watching(thread=steps.stop_after is None),
    ):
        refuse_other_runs(directory, config, fingerprint, device, alone)
        torch.manual_seed(config.train.seed)  # dropout does not depend on which weights were drawn
        model = found.model.to(device)
        run = assemble(config, directory, device, model, found.work, alone.group(device, config))
        is_packed = getattr(model, "packed", False)
        if is_packed and takes_narrow_gradients(run) and config.train.microbatch_tokens is None:
            narrow_gradients(model)
        follow(memory, run)
        memory.begin()
        if config.train.compile:
            steps.warn(compile_now(run))
        run.metric = config.eval.metric
        run.enough = partial(_is_enough, run, config.eval.patience)
        if uploader is not None:
            claim_place(uploader.remote, config, fingerprint, device)
            run.uploader = uploader
        for line in found.lines:
            steps.warn(line)
        if steps.at_start and (before := run.work.evaluate(run, StopRequest(run))) is not None:
            steps.at_start(before)
        training = conduct(
            settings,
            run,
            describe=lambda environment: describe(
                settings, directory, found.data, fingerprint, found.tokenizer_json, environment
            ),
            nothing_held_out=lambda: f"nothing is evaluated: {found.why_not_evaluated}",
            notes=notes,
            steps=steps,
        )
        if steps.stop_after is not None:
            return Finetuned(training, None, None)
        return _kept(run, found, config, training)


def _kept(run: Run, found: Prepared, config: FinetuneLoop, training: Finished) -> Finetuned:
    """What the run leaves, by the weights that are kept."""
    evaluated = _chosen(run, config, training)
    averaged = run.average is not None and run.average.num_updates > 0
    whole = run.average.in_place() if run.average is not None and averaged else nullcontext()
    with whole, parts_uncompiled(run.model, config.train.compile):
        kept = found.keep(run, evaluated)
    if kept.scores is not None:
        write_json(run.directory / TASK_FILE, kept.scores)
    return kept


def with_steps(settings: Settings[Any], num_examples: int, where: str) -> Settings[Any]:
    """With `train.steps` as the epochs need, and evaluations and checkpoints as they are asked for in other words.

    where: of the examples. Raises `UsageError` for fewer than a step takes, or a schedule that does not fit into the steps.
    """
    config = settings.config
    if num_examples < config.sequences_per_step:
        what = f"one step takes {counted(config.sequences_per_step, 'example')}, and there are {num_examples} to train on"
        do = f"lower `train.microbatch` (`batch` of `hotloop.fit`) to {num_examples} or less, with `train.grad_accum_steps` 1"
        raise UsageError(what, where=where, do=do)
    each = steps_per_epoch(num_examples, config.sequences_per_step)
    examples = counted(num_examples, "example")
    epochs, by_default = config.eval.every_epochs, settings.origin("eval.every_steps") == "default"
    if epochs is None and by_default and (config.eval.patience or config.eval.export == "best"):
        epochs = 1  # few examples take fewer steps than the default: there would be nothing to choose among
    if epochs is not None:
        why = f"detected: {counted(epochs, 'epoch')} of {examples}"
        settings = settings.with_values({"eval.every_steps": epochs * each}, origin=why)
    if config.eval.export == "best":
        every, saved = settings.config.eval.every_steps, config.checkpoint.every_steps
        kept: dict[str, int] = {"checkpoint.keep_best": max(config.checkpoint.keep_best, 1)}
        if saved == "auto" or not saved or every % saved:
            kept["checkpoint.every_steps"] = every
        why = "detected: `eval.export: best` needs a checkpoint of each evaluation"
        settings = settings.with_values(kept, origin=why)
    if config.train.steps:
        return settings
    why = f"detected: {counted(config.train.epochs, 'epoch')} of {examples}"
    try:
        return settings.with_values({"train.steps": config.train.epochs * each}, origin=why)
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(what, where=settings.place("schedule.warmup_steps")) from error


def _is_enough(run: Run, patience: int | None, step: int) -> bool:
    """True after so many evaluations in a row, up to a step, that are no better than the best one before."""
    if patience is None:
        return False
    losses = held_out_losses(run.evals_file, run.metric)
    losses = {each: loss for each, loss in losses.items() if each <= step}
    if not losses:
        return False
    lowest = losses[best_step(losses)]
    first = min([each for each, loss in losses.items() if loss == lowest] or losses)
    return sum(each > first for each in losses) >= patience


def _chosen(run: Run, config: FinetuneLoop, training: Finished) -> Evaluated:
    """Put the weights that are kept into the model: of the last step, or of the best evaluation."""
    found = [each for each in read_evaluations(run) if each.metrics is not None]
    if not found:
        return Evaluated(training, None)
    last = chosen = found[-1]
    losses = held_out_losses(run.evals_file, run.metric)
    if (
        config.eval.export == "best" and losses
    ):  # none where no evaluation has the metric, as r2 of equal numbers
        step = best_step(losses)
        chosen = next(each for each in reversed(found) if each.step == step)
        if chosen.step != last.step:
            best = store.of_step(run.checkpoints, step)
            state.restore_weights(store.load(best, ("model",))[0]["model"], run.model)
            if run.average is not None:
                run.average.restore(best)
    return Evaluated(training, chosen, stopped_early=last.step < config.train.steps)
