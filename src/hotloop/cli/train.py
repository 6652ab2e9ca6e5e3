"""`hotloop train CONFIG [key=value ...]`"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotloop.core.errors import EnvironmentFailed, Interrupted, UsageError

if TYPE_CHECKING:
    from hotloop.core.ranks import Ranks
    from hotloop.train.rendezvous import Rendezvous
    from hotloop.train.start import Finished


KINDS: dict[str, str | None] = {
    "training on text": None,
    "fine-tuning: classification (sentiment), multilabel, regression, tokens (entities), classification+tokens": "classification",
    "fine-tuning: instructions, text": "text",
    "hotloop.fit of a module of your own": "module",
}
"""Kinds of training with settings of their own, and a task of each."""


def _list_keys(config: Path | None, task: str | None) -> None:
    """Of the kind of training that is given; else of each."""
    from hotloop.core.config import known_keys
    from hotloop.core.settings import kind_of, task_of

    kinds = KINDS
    if task is not None:
        from hotloop.finetune.job import check_task

        check_task(task)
        kinds = {"": task}
    elif config is not None:
        kinds = {"": task_of(config)}
    for heading, each in kinds.items():
        if heading:
            click.echo(f"# {heading}")
        for name, key in known_keys(kind_of(each)).items():
            default = f"[{key.default}]" if key.default else "[must be given]"
            click.echo(f"{name:28} {default:18} {key.summary}".rstrip())


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [default: runs/NAME].")
@click.option(
    "--task",
    metavar="TASK",
    help="Fine-tune without a CONFIG: classification (or sentiment), multilabel, regression, tokens (or entities), classification+tokens, instructions, text.",
)
@click.option("--data", metavar="FILE", help="With --task: what is learned from, as csv, tsv, jsonl or CoNLL's columns.")  # fmt: skip
@click.option("--model", metavar="DIR", help="With --task: the model of transformers to start from.")  # fmt: skip
@click.option(
    "--profile",
    type=click.Choice(["test", "full"]),
    default="full",
    show_default=True,
    help="Of a fine-tuning: `test` rehearses it in minutes: a sample, a few steps, evaluation, save, resume, export.",
)
@click.option("--stop-after", type=click.IntRange(min=1), metavar="N", help="Only measure: end after N steps, without evaluating or saving.")  # fmt: skip
@click.option("--from-step", type=click.IntRange(min=0), metavar="N", help="Continue from the checkpoint of step N and not from the newest; 0 starts over.")  # fmt: skip
@click.option("--stretch-schedule", "stretch", is_flag=True, help="Allow another train.steps although the schedule's rates until now would have been others.")  # fmt: skip
@click.option("--record-samples", is_flag=True, help="Write a checksum of each sequence that a step takes into samples.jsonl.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", help="Write the outcome here; `-` for stdout.")
@click.option("--keys", is_flag=True, help="List every key with its default: those of CONFIG or --task, else of each kind of training.")  # fmt: skip
def train(
    config: Path | None,
    overrides: tuple[str, ...],
    out: Path | None,
    task: str | None,
    data: str | None,
    model: str | None,
    profile: str,
    stop_after: int | None,
    from_step: int | None,
    stretch: bool,
    record_samples: bool,
    json_file: str | None,
    keys: bool,
) -> None:
    """Train a model from a CONFIG file; KEY=VALUE changes a setting. With --task, fine-tune one of transformers.

    Ctrl-C saves. The same command again continues where it stopped. Several processes:
    `torchrun --nproc-per-node 2 -m hotloop train CONFIG`; they share the microbatches of each step.
    """
    from hotloop.cli import finetune
    from hotloop.core.ranks import read_ranks

    if keys:
        _list_keys(config, task)
        return
    config, overrides, task = finetune.as_settings(config, overrides, task=task, data=data, model=model)  # fmt: skip
    if stop_after is not None and from_step is not None:
        do = "leave one of them out"
        raise UsageError("--from-step continues a run, and --stop-after only measures", do=do)
    ranks = read_ranks(os.environ)
    steps: dict[str, Any] = {"stop_after": stop_after, "from_step": from_step, "stretch": stretch}
    if task is None:
        assert config is not None
        if profile == "test":
            do = "for a training on text, `--stop-after N` measures N of its steps"
            raise UsageError("--profile test is of fine-tunings", do=do)
        _train_on_text(config, overrides, out, json_file, ranks, record_samples=record_samples, **steps)  # fmt: skip
        return
    if ranks.num_ranks > 1 or record_samples:
        do = "start it without torchrun and without --record-samples"
        raise UsageError("a fine-tuning is of one process, and records no samples", do=do)
    if profile == "test" and (stop_after is not None or from_step is not None):
        raise UsageError(
            "--profile test makes its own steps", do="leave --stop-after and --from-step out"
        )
    finetune.train(task, config, overrides, out, json_file, profile=profile, **steps)


def _train_on_text(
    config: Path,
    overrides: tuple[str, ...],
    out: Path | None,
    json_file: str | None,
    ranks: Ranks,
    *,
    stop_after: int | None,
    from_step: int | None,
    **rest: bool,
) -> None:
    """rest: `stretch` and `record_samples` of `train.start.start`."""
    from hotloop.cli.output import note, refuse_unwritable, tell_json
    from hotloop.cli.progress import progress_bar
    from hotloop.core.file_locks import refuse_busy
    from hotloop.core.progress import silent
    from hotloop.core.settings import load_settings
    from hotloop.runs.memory_end import memory_told
    from hotloop.train.early import refuse_early

    with _rendezvous(ranks) as rendezvous:
        settings = load_settings(config, overrides)
        directory = out or Path("runs") / settings.config.name
        refuse_unwritable(json_file, made=directory)
        if ranks.is_first:
            refuse_busy(directory)
        refuse_early(settings.config)
        from hotloop.train.start import start

        tells = ranks.is_first
        told: AbstractContextManager[None] = nullcontext()
        if stop_after is None:  # who only measures reads the note
            words = [str(config), *overrides]
            told = memory_told(directory, settings, note, rank=ranks.rank, asked=words)
        with told, progress_bar() if tells else nullcontext(silent) as progress:
            try:
                outcome = start(
                    settings,
                    directory,
                    stop_after=stop_after,
                    from_step=from_step,
                    progress=progress,
                    warn=note if tells else lambda message: None,  # the first one says the same
                    rendezvous=rendezvous,
                    **rest,
                )
            except Interrupted as ended:
                if from_step is not None:
                    ended.do = "run the command again without --from-step to continue"
                raise
        if not tells:
            return
        if tell_json(asdict(outcome), json_file):
            tell(outcome, directory)
        if outcome.not_uploaded is not None:
            do = "the checkpoints here are whole; the same command again uploads the newest"
            raise EnvironmentFailed(outcome.not_uploaded, where=str(directory), do=do)


@contextmanager
def _rendezvous(ranks: Ranks) -> Iterator[Rendezvous | None]:
    """With the other processes of a `torchrun`; an error that all of them have is shown by one."""
    if not ranks.launched:
        yield None
        return
    from hotloop.train.rendezvous import AlreadyReported, joined

    try:
        with joined(ranks) as rendezvous:
            yield rendezvous
    except AlreadyReported as ended:
        raise click.exceptions.Exit(ended.exit_code) from ended


def tell(outcome: Finished, directory: Path) -> None:
    from hotloop.report.numbers import counted, loss, rate
    from hotloop.report.words import trouble

    click.echo(
        f"{counted(outcome.steps, 'step')}, loss {loss(outcome.loss)}"
        f"{_held_out(outcome.held_out_loss, outcome.averaged_held_out_loss)}"
    )
    seen = trouble(
        spikes=outcome.num_spikes, skipped=outcome.num_skipped, rollbacks=outcome.num_rollbacks
    )
    if seen:
        click.echo(f"stability: {seen}")
    if outcome.tokens_per_s is not None:
        click.echo(
            f"{rate(outcome.tokens_per_s, 'tokens')} in the median step, evaluation and saves left out"
        )
    click.echo(
        f"{directory}: `hotloop report {shlex.quote(str(directory))}` shows where the time went"
    )


def _held_out(loss: float | None, averaged: float | None) -> str:
    if loss is None:
        return ""
    mean = "" if averaged is None else f" ({averaged:.4f} with averaged weights)"
    return f", on held-out text {loss:.4f}{mean}"
