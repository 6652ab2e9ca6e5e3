"""From settings and labelled texts to a run directory with a model that transformers loads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import FinetuneConfig
from hotloop.core.settings import Settings
from hotloop.finetune.adapters import export_adapter, weights_in_words
from hotloop.finetune.classifier import Classifier, why_not_packed
from hotloop.finetune.conduct import (
    CHECKED,
    MERGED_DIRECTORY,
    MODEL_DIRECTORY,
    Evaluated,
    Finetuned,
    Prepared,
    Steps,
    conduct_finetuning,
    with_steps,
)
from hotloop.finetune.dropout import replace_dropout
from hotloop.finetune.encoder import (
    Encoder,
    check_ids,
    check_known,
    export,
    load_encoder,
    pad_id_of,
)
from hotloop.finetune.examples import Dataset
from hotloop.finetune.heads import Head, head_of
from hotloop.finetune.joint import Joint
from hotloop.finetune.microbatches import laid_out
from hotloop.finetune.tokens import Tokens, tokenized
from hotloop.finetune.two_heads import TwoHeads
from hotloop.finetune.vocabulary import keep_used_rows
from hotloop.finetune.words import tokenized_words
from hotloop.finetune.work import (
    FinetuneWork,
    Labelled,
    layout_in_words,
    lengths_of_steps,
    steps_in_words,
    twice,
)
from hotloop.hardware.device import pick_device
from hotloop.optimizations.host_memory.trainer import off_their_file
from hotloop.report.numbers import counted
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import Run

ENTITY_MODEL_DIRECTORY = "model-entities"
"""Beside it, of a training of both heads: transformers has no class for both."""


def finetune(
    settings: Settings[FinetuneConfig],
    dataset: Dataset,
    directory: Path,
    steps: Steps,
) -> Finetuned:
    """Like `train.start.start`, of labelled texts."""
    device = pick_device(settings.config.train.device, Rendezvous().ranks)
    settings = with_steps(settings, len(dataset.train), settings.config.data.file)

    def prepare(config: FinetuneConfig) -> Prepared:
        head = head_of(config, dataset.classes, dataset.kinds, dataset.train.labels)
        encoder = load_encoder(config.model, head, steps.warn, device=device, precision=config.train.precision)  # fmt: skip
        off_their_file(encoder.model)
        work = build_work(config, dataset, encoder, head, steps.warn)
        fingerprint = f"{dataset.fingerprint} {encoder.fingerprint} {work.model.packed}"
        lines = arithmetic(config, dataset, work)
        keep = partial(_keep, encoder=encoder, work=work)
        file = str(Path(config.data.file).expanduser().resolve())
        return Prepared(work.model, work, fingerprint, file, encoder.tokenizer_json, lines, keep)

    return conduct_finetuning(settings, device, directory, prepare, steps)


def build_work(
    config: FinetuneConfig,
    dataset: Dataset,
    encoder: Encoder,
    head: Head,
    warn: Callable[[str], None],
) -> FinetuneWork:
    """Tokenize, and choose the layout. Raises `UsageError`."""
    parts: list[Labelled] = []
    identity = hashlib.sha256(encoder.tokenizer_json).hexdigest()
    longest = config.model.max_tokens
    for examples in (dataset.train, dataset.held_out):
        tokens: Tokens = []
        words: Tokens | list[None] = [None] * len(examples)
        if len(examples) and head.reads == "first":
            tokens = tokenized(encoder.tokenizer, identity, examples, longest)
        elif len(examples):
            tokens, words = tokenized_words(encoder.tokenizer, identity, examples, longest)
        if tokens:
            check_ids(tokens, encoder.model, config.model.path)
            check_known(tokens, encoder.tokenizer, config.model.path)
        pairs = zip(examples.labels, words, strict=True)
        parts.append(Labelled(tokens, [head.label(label, own) for label, own in pairs]))
    few = [max((ids for part in parts for ids in part.tokens), key=len), *parts[0].tokens]
    steps = lengths_of_steps([len(ids) for ids in parts[0].tokens], config, config.data.seed)
    kind = type(getattr(encoder.model, "sequence", encoder.model)).__name__
    why_not = partial(why_not_packed, encoder.model, few[:CHECKED], head)
    layout = laid_out(config.model.packed, steps, config.train, warn, kind, why_not)
    pad_id = pad_id_of(getattr(encoder.model, "sequence", encoder.model), encoder.tokenizer)
    if pad_id is None and not layout.packed:
        raise UsageError(
            "this model has to be padded, and its tokenizer has no pad token that it embeds",
            where=config.model.path,
            do="give it one: `tokenizer.add_special_tokens({'pad_token': '[PAD]'})`, `model.resize_token_embeddings(len(tokenizer))`, then `save_pretrained` of both",
        )
    replace_dropout(encoder.model)
    model = Classifier(
        encoder.model,
        packed=layout.packed,
        pad_id=pad_id or 0,
        head=head,
        buckets=layout.buckets,
    )
    used = None
    # beside an adapter none of them is trained, and decay moves the rows that nobody reads
    if model.packed and not config.model.lora.rank and not config.optimizer.weight_decay:
        embedding = encoder.model.get_input_embeddings()
        used = keep_used_rows(embedding, [each for part in parts for each in part.tokens])
        parts = [replace(part, tokens=used.renumbered(part.tokens)) for part in parts]
    train, held_out = parts
    return FinetuneWork(config, model, train, held_out, used)


def arithmetic(config: FinetuneConfig, dataset: Dataset, work: FinetuneWork) -> list[str]:
    """What is trained on, in numbers."""
    lengths = [len(ids) for ids in work.train.tokens]
    tokens, padded = sum(lengths), len(lengths) * config.model.max_tokens
    cut = sum(length == config.model.max_tokens for length in lengths)
    lines = [
        f"{counted(len(lengths), 'example')} to train on and {len(work.held_out.labels)} held out"
        f"{_of(config, dataset)}; {tokens:,} tokens an epoch, padded to {config.model.max_tokens} "
        f"they would be {padded:,} ({padded / tokens:.1f} times as many)",
        steps_in_words(len(lengths), config),
        *layout_in_words(lengths, config, config.data.seed, work.model),
    ]
    if work.used is not None:
        lines.append(
            f"{len(work.used.ids):,} of the {len(work.used.table):,} token embeddings are used and trained"
        )
    if config.model.lora.rank:
        lines.append(weights_in_words(work.model, "an adapter and the head"))
    if num_absent := _num_absent(config, dataset):
        lines.append(
            f"of {num_absent} of the {len(dataset.classes)} classes no example is held out: their recall is not measured"
        )
    if dataset.train.num_empty:
        lines.append(f"left out: {counted(dataset.train.num_empty, 'example')} without a text")
    if cut:
        lines.append(
            f"as long as `model.max_tokens` {config.model.max_tokens}, and perhaps cut: {counted(cut, 'text')}"
        )
    return lines + twice(dataset.train.texts, dataset.held_out.texts)


def _num_absent(config: FinetuneConfig, dataset: Dataset) -> int:
    """Classes that the held-out examples, where there are any, have none of."""
    found = dataset.held_out.labels
    if not found or not config.task.startswith("classification"):
        return 0
    return len({*dataset.classes} - {each[0] if config.task != "classification" else each for each in found})  # fmt: skip


def _of(config: FinetuneConfig, dataset: Dataset) -> str:
    named = [counted(len(dataset.classes), "class", "classes")] if config.task != "regression" and dataset.classes else []  # fmt: skip
    if dataset.kinds:
        named.append(f"{counted(len(dataset.kinds), 'kind')} of entities ({', '.join(dataset.kinds[:5])}{', ...' if len(dataset.kinds) > 5 else ''})")  # fmt: skip
    return f", of {' and '.join(named)}" if named else ""


def _keep(run: Run, evaluated: Evaluated, *, encoder: Encoder, work: FinetuneWork) -> Finetuned:
    head, model, tokens = work.model.head, encoder.model, work.train.tokens[:CHECKED]
    whole: AbstractContextManager[None] = nullcontext()
    if work.used is not None:
        tokens, whole = work.used.token_ids(tokens), work.used.whole()
    trusted = work.config.model.trust_remote_code
    lora, precision = work.config.model.lora, work.config.train.precision
    kept = run.directory / MERGED_DIRECTORY

    def write(own: Any, name: str, auto: str, number: int = 0) -> None:
        given = encoder.tokenizer, run.directory / name, tokens
        if encoder.adapters:
            merged = kept.with_name(name.replace(MODEL_DIRECTORY, MERGED_DIRECTORY))
            adapter = encoder.adapters[number]
            export_adapter(adapter, lora, *given, merged, precision=precision, trusted=trusted, auto=auto)  # fmt: skip
        else:
            export(own, *given, auto=auto, trusted=trusted)

    with whole:
        if isinstance(head, Joint):
            assert isinstance(model, TwoHeads)
            write(model.sequence, MODEL_DIRECTORY, head.first.model_class)
            with model.whole_token_model() as of_tokens:
                write(of_tokens, ENTITY_MODEL_DIRECTORY, head.each.model_class, 1)
        else:
            write(model, MODEL_DIRECTORY, head.model_class)
    told = None
    if evaluated.chosen is not None:
        assert evaluated.chosen.metrics is not None
        told = head.scores(evaluated.chosen.metrics)
        told = replace(told, step=evaluated.chosen.step, stopped_early=evaluated.stopped_early)
    place, merged = str(run.directory / MODEL_DIRECTORY), str(kept) if lora.merge else None
    return Finetuned(evaluated.training, told, place, merged, bool(encoder.adapters))
