"""`hotloop train --task TASK --data FILE --model DIR`, and of a config with `task`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hotloop.core.causal_config import CAUSAL_TASKS
from hotloop.core.errors import UsageError

if TYPE_CHECKING:
    from hotloop.finetune.conduct import Finetuned


@dataclass(frozen=True, slots=True)
class Words:
    """What was given: a config, or `KEY=VALUE` alone."""

    config: Path | None
    overrides: tuple[str, ...]
    task: str | None
    """`None` of a training on text."""


def as_settings(
    config: Path | None,
    overrides: tuple[str, ...],
    *,
    task: str | None,
    data: str | None,
    model: str | None,
) -> Words:
    """The options as settings; without a config the first KEY=VALUE stands in its place."""
    from hotloop.core.settings import task_of

    given = {"task": task, "data.file": data, "model.path": model}
    words = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    if task is not None and config is not None and "=" in str(config) and not config.exists():
        config, overrides = None, (str(config), *overrides)
    if config is None and task is None:
        raise click.UsageError("Missing argument 'CONFIG' (or --task with --data and --model).")
    if config is None:
        known = {word.partition("=")[0] for word in (*words, *overrides)}
        options = {"data.file": "--data FILE", "model.path": "--model DIR"}
        if lacking := [option for key, option in options.items() if key not in known]:
            raise UsageError(f"--task {task} needs {' and '.join(lacking)} beside it")
    found = task or (task_of(config) if config is not None else None)
    return Words(config, (*words, *overrides), found)


def train(
    words: Words,
    out: Path | None,
    json_file: str | None,
    *,
    stop_after: int | None,
    from_step: int | None,
    stretch: bool,
) -> None:
    from hotloop.cli.output import note, refuse_unwritable, write_object
    from hotloop.cli.progress import progress_bar
    from hotloop.core.file_locks import refuse_busy
    from hotloop.finetune.job import job_of

    job = job_of(words.task or "", words.config, words.overrides)
    directory = out or Path("runs") / job.settings.config.name
    refuse_unwritable(json_file, made=directory)
    refuse_busy(directory)
    from hotloop.finetune.conduct import Steps

    with progress_bar() as progress:
        steps = Steps(
            stop_after=stop_after,
            from_step=from_step,
            stretch=stretch,
            progress=progress,
            warn=note,
        )
        outcome = job.start(directory, steps)
    if json_file is not None:
        write_object(asdict(outcome), json_file)
    if json_file != "-":
        _tell(outcome, directory)


def _tell(outcome: Finetuned, directory: Path) -> None:
    from hotloop.cli.train import tell
    from hotloop.report.held_out import scores_in_lines

    tell(outcome.training, directory)
    if outcome.scores is not None:
        for line in scores_in_lines(outcome.scores):
            click.echo(line)
    if outcome.model is not None:
        what = "the adapter, for peft's" if outcome.is_adapter else "the model, for transformers'"
        click.echo(f"{outcome.model}: {what} from_pretrained")
    if outcome.merged is not None:
        click.echo(f"{outcome.merged}: the model with the adapter in its weights")


def rehearse(words: Words, out: Path | None, json_file: str | None) -> None:
    from hotloop.cli.output import note, refuse_unwritable, write_object
    from hotloop.cli.progress import progress_bar
    from hotloop.core.errors import ExitCode
    from hotloop.core.file_locks import refuse_busy
    from hotloop.core.finetune_config import FinetuneConfig
    from hotloop.core.settings import load_settings
    from hotloop.finetune.profile import rehearse
    from hotloop.report.held_out import profile_lines

    if words.task in CAUSAL_TASKS:
        raise UsageError(
            "--profile test is of encoders",
            do="`--stop-after N` measures N steps of a decoder's training",
        )
    settings = load_settings(words.config, words.overrides, kind=FinetuneConfig)
    directory = out or Path("runs") / f"{settings.config.name}-test"
    refuse_unwritable(json_file, made=directory)
    refuse_busy(directory)
    with progress_bar() as progress:
        found = rehearse(settings, directory, progress=progress, warn=note)
    if json_file is not None:
        write_object(asdict(found), json_file)
    if json_file != "-":
        for line in profile_lines(asdict(found)):
            click.echo(line)
    if not found.resumed_equal:
        raise click.exceptions.Exit(ExitCode.FOUND)
