"""From settings and labelled texts to a run directory with a model that transformers loads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from hotloop.checkpoint.upload import Uploader
from hotloop.core.errors import UsageError
from hotloop.core.file_locks import locked
from hotloop.core.files import write_json
from hotloop.core.finetune_config import FinetuneConfig
from hotloop.core.progress import Progress, silent
from hotloop.core.settings import Settings
from hotloop.finetune import scores
from hotloop.finetune.classifier import Classifier, why_not_packed
from hotloop.finetune.encoder import Encoder, check_ids, export, load_encoder
from hotloop.finetune.examples import Dataset
from hotloop.finetune.tokens import tokenized
from hotloop.finetune.work import ClassificationWork, Labelled, steps_per_epoch
from hotloop.hardware.device import pick_device
from hotloop.train.evaluate import read_evaluations
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import Run, assemble, set_up_process
from hotloop.train.same_run import claim_place
from hotloop.train.start import Finished, conduct, describe, refuse_other_runs, resolved

MODEL_DIRECTORY = "model"
CHECKED = 4
"""Examples on which layouts and the exported model are compared."""


@dataclass(frozen=True, slots=True)
class Finetuned:
    training: Finished
    scores: dict[str, Any] | None
    """What `task.json` holds; `None` where nothing was held out, or it was only measured."""
    model: str | None
    """Directory of the model, as transformers has it; `None` where it was only measured."""
    schema: str = "hotloop.finetune/1"


def finetune(
    settings: Settings[FinetuneConfig],
    dataset: Dataset,
    directory: Path,
    *,
    stop_after: int | None = None,
    from_step: int | None = None,
    stretch: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Finetuned:
    """Like `train.start.start`, of labelled texts."""
    alone = Rendezvous()
    device = pick_device(settings.config.train.device, alone.ranks)
    settings, notes = resolved(with_steps(settings, len(dataset.train)), device, alone.ranks, warn)
    config = settings.config
    uploader = None
    if config.checkpoint.upload is not None and stop_after is None:
        uploader = Uploader(config.checkpoint, config.name, warn)
        uploader.remote.listed(attempts=2)
    set_up_process(config, device)
    encoder = load_encoder(config.model, dataset.classes, warn)
    work = build_work(config, dataset, encoder, warn)
    name = f"{dataset.fingerprint} {encoder.fingerprint} {work.model.packed}"
    fingerprint = hashlib.sha256(name.encode()).hexdigest()
    with locked(directory, wanted=True), uploader or nullcontext():
        refuse_other_runs(directory, config, fingerprint, device, alone)
        torch.manual_seed(config.train.seed)  # dropout does not depend on which weights were drawn
        model = work.model.to(device)
        run = assemble(config, directory, device, model, work, alone.group(device, config))
        if uploader is not None:
            claim_place(uploader.remote, config, fingerprint, device)
            run.uploader = uploader
        for line in arithmetic(config, dataset, work):
            warn(line)
        training = conduct(
            settings,
            run,
            describe=lambda environment: describe(
                settings,
                directory,
                str(Path(config.data.file).expanduser().resolve()),
                fingerprint,
                encoder.tokenizer_json,
                environment,
            ),
            nothing_held_out=lambda: "nothing is evaluated: `data.held_out` leaves no example",
            notes=notes,
            stop_after=stop_after,
            from_step=from_step,
            stretch=stretch,
            record_samples=False,
            progress=progress,
            warn=warn,
        )
        if stop_after is not None:
            return Finetuned(training, None, None)
        return Finetuned(training, *_kept(run, encoder, work, dataset))


def with_steps(settings: Settings[FinetuneConfig], num_examples: int) -> Settings[FinetuneConfig]:
    """With `train.steps` as the epochs need. Raises `UsageError` for a schedule that does not fit into them."""
    config = settings.config
    if config.train.steps:
        return settings
    each = steps_per_epoch(num_examples, config.sequences_per_step)
    why = f"detected: {config.train.epochs} epochs of {num_examples} examples"
    try:
        return settings.with_values({"train.steps": config.train.epochs * each}, origin=why)
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(what, where=settings.place("schedule.warmup_steps")) from error


def build_work(
    config: FinetuneConfig, dataset: Dataset, encoder: Encoder, warn: Callable[[str], None]
) -> ClassificationWork:
    """Tokenize, and choose the layout. Raises `UsageError`."""
    parts: list[Labelled] = []
    identity = hashlib.sha256(encoder.tokenizer_json).hexdigest()
    for examples in (dataset.train, dataset.held_out):
        tokens = tokenized(encoder.tokenizer, identity, examples, config.model.max_tokens) if len(examples) else []  # fmt: skip
        if tokens:
            check_ids(tokens, encoder.model, config.model.path)
        parts.append(Labelled(tokens, dataset.numbers(examples)))
    reason = why_not_packed(encoder.model, parts[0].tokens[:CHECKED])
    if reason is not None:
        kind = type(encoder.model).__name__
        warn(f"{kind} is not packed: {reason}; examples of similar length are padded together")
    pad_id = encoder.tokenizer.pad_token_id or 0
    model = Classifier(encoder.model, packed=reason is None, pad_id=pad_id)
    train, held_out = parts
    return ClassificationWork(config, model, train, held_out, len(dataset.classes))


def arithmetic(config: FinetuneConfig, dataset: Dataset, work: ClassificationWork) -> list[str]:
    """What is trained on, in numbers."""
    lengths = [len(ids) for ids in work.train.tokens]
    tokens, padded = sum(lengths), len(lengths) * config.model.max_tokens
    cut = sum(length == config.model.max_tokens for length in lengths)
    each, steps = steps_per_epoch(len(lengths), config.sequences_per_step), config.train.steps
    lines = [
        f"{len(lengths)} examples to train on and {len(work.held_out.labels)} held out, of "
        f"{len(dataset.classes)} classes; {tokens} tokens an epoch, padded to {config.model.max_tokens} "
        f"they would be {padded} ({padded / tokens:.1f} times as many)",
        f"{each} steps of {config.sequences_per_step} examples an epoch, {steps} steps in {steps / each:g} epochs",
    ]
    if dataset.train.num_empty:
        lines.append(f"{dataset.train.num_empty} examples without a text are left out")
    if cut:
        lines.append(
            f"{cut} texts fill `model.max_tokens` {config.model.max_tokens} and may be cut"
        )
    return lines


def _kept(
    run: Run, encoder: Encoder, work: ClassificationWork, dataset: Dataset
) -> tuple[dict[str, Any] | None, str]:
    """Write `task.json` and the model directory of a finished run."""
    place = run.directory / MODEL_DIRECTORY
    averaged = run.average is not None and run.average.num_updates > 0
    with run.average.in_place() if run.average is not None and averaged else nullcontext():
        export(encoder.model, encoder.tokenizer, place, work.train.tokens[:CHECKED])
    found = [each.metrics for each in read_evaluations(run) if each.metrics is not None]
    if not found:
        return None, str(place)
    told = scores.described(found[-1]["confusion"], dataset.classes)
    write_json(run.directory / "task.json", told)
    return told, str(place)
