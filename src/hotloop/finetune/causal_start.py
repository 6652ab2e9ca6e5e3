"""From settings and texts to a run directory with a decoder that transformers loads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from hotloop.checkpoint.upload import Uploader
from hotloop.core.causal_config import CausalConfig
from hotloop.core.errors import UsageError
from hotloop.core.file_locks import locked
from hotloop.core.files import write_json
from hotloop.core.progress import Progress, silent
from hotloop.core.settings import Settings
from hotloop.core.task_scores import TASK_FILE, TaskScores
from hotloop.finetune.adapters import check_lora, export_adapter
from hotloop.finetune.causal import CausalLearner, CausalWork, why_not_packed
from hotloop.finetune.chats import Sources
from hotloop.finetune.decoder import (
    LoadedDecoder,
    Vocabulary,
    load_decoder,
    load_vocabulary,
    longest_example,
)
from hotloop.finetune.encoder import check_ids, export
from hotloop.finetune.sequences import Counts, Example, examples_of, use_template
from hotloop.finetune.start import CHECKED, MODEL_DIRECTORY, Finetuned, with_steps
from hotloop.finetune.work import steps_per_epoch
from hotloop.hardware.device import pick_device
from hotloop.train.evaluate import read_evaluations
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import Run, assemble, set_up_process
from hotloop.train.same_run import claim_place
from hotloop.train.start import conduct, describe, refuse_other_runs, resolved

MERGED_DIRECTORY = "merged"


def finetune_decoder(
    settings: Settings[CausalConfig],
    sources: Sources,
    directory: Path,
    *,
    stop_after: int | None = None,
    from_step: int | None = None,
    stretch: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Finetuned:
    """Like `train.start.start`, of answers or texts."""
    alone = Rendezvous()
    device = pick_device(settings.config.train.device, alone.ranks)
    check_lora(settings.config.model.lora, device)
    vocabulary = load_vocabulary(settings.config.model.path)
    longest = longest_example(settings.config.model, vocabulary)
    settings = settings.with_values(
        {"model.max_tokens": longest}, origin=settings.origin("model.max_tokens")
    )
    counts = Counts()
    train, held_out = _tokenized(settings.config, sources, vocabulary, counts)
    settings, notes = resolved(with_steps(settings, len(train)), device, alone.ranks, warn)
    config = settings.config
    uploader = None
    if config.checkpoint.upload is not None and stop_after is None:
        uploader = Uploader(config.checkpoint, config.name, warn)
        uploader.remote.listed(attempts=2)
    set_up_process(config, device)
    decoder = load_decoder(config.model, device, warn)
    check_ids([each.ids for each in (*train, *held_out)], decoder.model, config.model.path)
    reason = why_not_packed(decoder.model, _few(train), longest)
    if reason is not None:
        kind = type(decoder.model).__name__
        warn(f"{kind} is not packed: {reason}; examples of similar length are padded together")
    model = CausalLearner(decoder.model, packed=reason is None, longest=longest)
    work = CausalWork(config, model, train, held_out)
    identity = hashlib.sha256(vocabulary.tokenizer_json).hexdigest()
    name = f"{sources.fingerprint} {decoder.fingerprint} {identity} {reason is None} {vocabulary.tokenizer.chat_template}"
    fingerprint = hashlib.sha256(name.encode()).hexdigest()
    with locked(directory, wanted=True), uploader or nullcontext():
        refuse_other_runs(directory, config, fingerprint, device, alone)
        torch.manual_seed(config.train.seed)  # dropout does not depend on which weights were drawn
        model = model.to(device)
        run = assemble(config, directory, device, model, work, alone.group(device, config))
        if uploader is not None:
            claim_place(uploader.remote, config, fingerprint, device)
            run.uploader = uploader
        for line in (*arithmetic(work, decoder.model), *counts.notes(longest)):
            warn(line)
        if sources.num_empty:
            warn(f"{sources.num_empty} examples without anything to learn are left out")
        training = conduct(
            settings,
            run,
            describe=lambda environment: describe(
                settings,
                directory,
                str(Path(config.data.file).expanduser().resolve()),
                fingerprint,
                vocabulary.tokenizer_json,
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
        return Finetuned(training, *_kept(run, decoder, vocabulary.tokenizer, work))


def _tokenized(
    config: CausalConfig, sources: Sources, vocabulary: Vocabulary, counts: Counts
) -> tuple[list[Example], list[Example]]:
    tokenizer = vocabulary.tokenizer
    use_template(tokenizer, config.data.chat_template)
    identity = hashlib.sha256(vocabulary.tokenizer_json).hexdigest()
    train, held_out = (
        examples_of(config, tokenizer, identity, part, counts)
        for part in (sources.train, sources.held_out)
    )
    if len(train) < config.sequences_per_step:
        raise UsageError(
            f"one step takes {config.sequences_per_step} examples, and there are {len(train)} to train on",
            where=config.data.file,
            do=f"lower `train.microbatch` to {len(train)} or less, with `train.grad_accum_steps` 1"
            if train
            else "raise `model.max_tokens`, which ends before what is learned begins",
        )
    return train, held_out


def _few(examples: list[Example]) -> list[Example]:
    """Some to compare layouts on, the longest among them: of more tokens than a sliding window, if any is."""
    longest = max(examples, key=lambda each: each.num_read)
    return [longest, *(each for each in examples[:CHECKED] if each is not longest)][:CHECKED]


def arithmetic(work: CausalWork, model: Any) -> list[str]:
    """What is trained on, in numbers."""
    config, train = work.config, work.train
    num_read = sum(each.num_read for each in train)
    num_targets = sum(each.num_targets for each in train)
    each, steps = steps_per_epoch(len(train), config.sequences_per_step), config.train.steps
    lines = [
        f"{len(train)} examples to train on and {len(work.held_out)} held out; {num_read} tokens an epoch, "
        f"{num_targets} of them learned ({num_targets / num_read:.0%})",
        f"{each} steps of {config.sequences_per_step} examples an epoch, {steps} steps in {steps / each:g} epochs",
    ]
    if config.model.lora.rank:
        every = [(p.numel(), p.requires_grad) for p in model.parameters()]
        trained = sum(number for number, is_trained in every if is_trained)
        lines.append(
            f"{trained} weights of an adapter are trained, beside {sum(number for number, _ in every) - trained} that are not"
        )
    return lines


def _kept(
    run: Run, decoder: LoadedDecoder, tokenizer: Any, work: CausalWork
) -> tuple[TaskScores | None, str]:
    """Write `task.json` and the model directory of a finished run."""
    place = run.directory / MODEL_DIRECTORY
    averaged = run.average is not None and run.average.num_updates > 0
    tokens = [each.ids for each in work.train[:CHECKED]]
    with run.average.in_place() if run.average is not None and averaged else nullcontext():
        if decoder.adapter is None:
            export(decoder.model, tokenizer, place, tokens, auto="AutoModelForCausalLM")
        else:
            merged = run.directory / MERGED_DIRECTORY
            export_adapter(decoder.adapter, work.config.model.lora, tokenizer, place, tokens, merged)  # fmt: skip
    found = [each for each in read_evaluations(run) if each.metrics is not None]
    if not found:
        return None, str(place)
    newest = found[-1]
    assert newest.metrics is not None
    loss = newest.loss if newest.averaged_loss is None else newest.averaged_loss
    told = TaskScores(
        work.config.task,
        held_out_loss=loss,
        perplexity=newest.metrics["perplexity"],
        num_targets=newest.num_targets,
        step=newest.step,
    )
    write_json(run.directory / TASK_FILE, told)
    return told, str(place)
