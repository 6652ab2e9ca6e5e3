"""`hotloop train --task TASK --data FILE --model DIR`, and of a config with `task`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hotloop.core.errors import UsageError

if TYPE_CHECKING:
    from hotloop.finetune.conduct import Finetuned


def as_settings(
    config: Path | None,
    overrides: tuple[str, ...],
    *,
    task: str | None,
    data: str | None,
    model: str | None,
) -> tuple[Path | None, tuple[str, ...], str | None]:
    """The config, if any, all settings as KEY=VALUE, and the task: `None` of a training on text.

    Without a config the first KEY=VALUE stands in its place.
    """
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
    return config, (*words, *overrides), found


def train(
    task: str,
    config: Path | None,
    overrides: tuple[str, ...],
    out: Path | None,
    json_file: str | None,
    *,
    profile: str,
    stop_after: int | None,
    from_step: int | None,
    stretch: bool,
) -> None:
    from hotloop.cli.output import note, refuse_unwritable, tell_json
    from hotloop.cli.progress import progress_bar
    from hotloop.core.errors import ExitCode
    from hotloop.core.file_locks import refuse_busy
    from hotloop.finetune.job import settings_of, start
    from hotloop.report.held_out import profile_lines
    from hotloop.runs.memory_end import memory_told

    rehearses = profile == "test"
    settings = settings_of(task, config, overrides)
    directory = out or Path("runs") / f"{settings.config.name}{'-test' if rehearses else ''}"
    refuse_unwritable(json_file, made=directory)
    refuse_busy(directory)
    from hotloop.finetune.conduct import Finetuned, Steps
    from hotloop.finetune.profile import rehearse

    told = memory_told(directory, settings, note) if stop_after is None else nullcontext()
    with told, progress_bar() as progress:
        found = (
            rehearse(settings, directory, progress=progress, warn=note)
            if rehearses
            else start(settings, directory, Steps(stop_after, from_step, stretch, progress, note))
        )
    speaks = tell_json(asdict(found), json_file)
    if isinstance(found, Finetuned):
        if speaks:
            _tell(found, directory)
        return
    for line in profile_lines(asdict(found)) if speaks else ():
        click.echo(line)
    if not found.resumed_equal:
        raise click.exceptions.Exit(ExitCode.FOUND)


def _tell(outcome: Finetuned, directory: Path) -> None:
    from hotloop.cli.train import tell
    from hotloop.report.held_out import scores_in_lines
    from hotloop.report.numbers import counted

    tell(outcome.training, directory)
    if (scores := outcome.scores) is not None:
        first, *others = scores_in_lines(scores)
        if scores.task == "classification":  # an accuracy of 1 out of two examples says little
            num = sum(each.num_examples for each in scores.by_class)
            first += f" on {counted(num, 'held-out example')}"
        for line in (first, *others):
            click.echo(line)
    if outcome.model is not None:
        what = "the adapter, for peft's" if outcome.is_adapter else "the model, for transformers'"
        click.echo(f"{outcome.model}: {what} from_pretrained")
    if outcome.merged is not None:
        click.echo(f"{outcome.merged}: the model with the adapter in its weights")
