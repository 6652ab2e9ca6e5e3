"""From settings and texts to a run directory with a decoder that transformers loads."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.core.causal_config import CausalConfig
from hotloop.core.errors import UsageError
from hotloop.core.files import write_json
from hotloop.core.settings import Settings
from hotloop.core.task_scores import TaskScores
from hotloop.finetune.adapters import check_lora, export_adapter, weights_in_words
from hotloop.finetune.causal import CausalLearner, CausalWork, why_not_packed
from hotloop.finetune.chats import PROMPTS_FILE, Prompts, Sources
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
from hotloop.finetune.decoder import (
    LoadedDecoder,
    Vocabulary,
    check_reads_only_before,
    load_decoder,
    load_vocabulary,
    longest_example,
)
from hotloop.finetune.encoder import check_ids, check_known, export
from hotloop.finetune.microbatches import laid_out
from hotloop.finetune.pretrained import Warn
from hotloop.finetune.sequences import Counts, Example, examples_of, use_template
from hotloop.finetune.work import layout_in_words, lengths_of_steps, steps_in_words, twice
from hotloop.hardware.device import pick_device
from hotloop.optimizations.host_memory.trainer import off_their_file
from hotloop.report.numbers import counted
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.run import Run


@dataclass(frozen=True, slots=True)
class CausalExamples:
    """All that a file has to learn from, tokenized; or a sample of it."""

    vocabulary: Vocabulary
    longest: int
    train: list[Example]
    held_out: list[Example]
    counts: Counts
    num_empty: int
    chats: bool
    fingerprint: str

    def sample(self, num: int, seed: int) -> CausalExamples:
        """Up to `num` of each part, drawn at random."""

        def drawn(part: list[Example]) -> list[Example]:
            numbers = random.Random(seed).sample(range(len(part)), min(num, len(part)))
            return [part[number] for number in sorted(numbers)]

        name = f"{self.fingerprint} {num}"
        return replace(self, train=drawn(self.train), held_out=drawn(self.held_out), fingerprint=name)  # fmt: skip


def read_examples(
    settings: Settings[CausalConfig], sources: Sources, warn: Warn
) -> tuple[Settings[CausalConfig], CausalExamples]:
    """With `model.max_tokens` resolved. Raises `UsageError`."""
    check_lora(settings.config.model.lora)
    vocabulary = load_vocabulary(settings.config.model, warn)
    longest = longest_example(settings.config.model, vocabulary)
    settings = settings.with_values(
        {"model.max_tokens": longest}, origin=settings.origin("model.max_tokens")
    )
    counts = Counts()
    train, held_out = _tokenized(settings.config, sources, vocabulary, counts)
    chats = sources.train[0].chat is not None
    return settings, CausalExamples(vocabulary, longest, train, held_out, counts, sources.num_empty, chats, sources.fingerprint)  # fmt: skip


def finetune_decoder(
    settings: Settings[CausalConfig], examples: CausalExamples, directory: Path, steps: Steps
) -> Finetuned:
    """Like `train.start.start`, of answers or texts; settings: those of `read_examples`."""
    device = pick_device(settings.config.train.device, Rendezvous().ranks)
    vocabulary, longest = examples.vocabulary, examples.longest
    train, held_out = examples.train, examples.held_out

    def prepare(config: CausalConfig) -> Prepared:
        decoder = load_decoder(config.model, device, steps.warn, precision=config.train.precision)
        off_their_file(decoder.model)
        check_ids([each.ids for each in (*train, *held_out)], decoder.model, config.model.path)
        # To compare layouts on, the longest among them: of more tokens than a sliding window, if any is.
        most = max(train, key=lambda each: each.num_read)
        few = [most, *(each for each in train[:CHECKED] if each is not most)][:CHECKED]
        shortest = min(few, key=lambda each: len(each.ids))
        check_reads_only_before(decoder.model, shortest.ids, config.model.path)
        lengths = lengths_of_steps([each.num_read for each in train], config, config.data.seed)
        kind, why_not = type(decoder.model).__name__, partial(why_not_packed, decoder.model, few, longest)  # fmt: skip
        layout = laid_out(config.model.packed, lengths, config.train, steps.warn, kind, why_not, drops=vocabulary.drops)  # fmt: skip
        model = CausalLearner(decoder.model, packed=layout.packed, longest=longest, buckets=layout.buckets)  # fmt: skip
        work = CausalWork(config, model, train, held_out)
        identity = hashlib.sha256(vocabulary.tokenizer_json).hexdigest()
        fingerprint = f"{examples.fingerprint} {decoder.fingerprint} {identity} {layout.packed} {vocabulary.tokenizer.chat_template}"
        if examples.chats and "strftime_now" in str(vocabulary.tokenizer.chat_template):
            fingerprint += f" {_contents([*train, *held_out])}"
            steps.warn(
                "the chat template writes the date into the examples: with that of another day this run is not continued, but "
                "refused as one on other data; give a template without `strftime_now` with `data.chat_template=FILE`"
            )
        lines = [*arithmetic(work, decoder.model), *examples.counts.notes(longest)]
        if examples.num_empty:
            lines.append(f"left out: {counted(examples.num_empty, 'example')} with nothing to learn")  # fmt: skip
        keep = partial(_keep, decoder=decoder, tokenizer=vocabulary.tokenizer, work=work, prompts=Prompts(examples.chats))  # fmt: skip
        file = str(Path(config.data.file).expanduser().resolve())
        return Prepared(model, work, fingerprint, file, vocabulary.tokenizer_json, lines, keep)

    settings = with_steps(settings, len(train), settings.config.data.file)
    return conduct_finetuning(settings, device, directory, prepare, steps)


def _contents(examples: list[Example]) -> str:
    digest = hashlib.sha256()
    for each in examples:
        digest.update(b"%d " % len(each.ids) + each.ids.tobytes() + each.learned.tobytes())
    return digest.hexdigest()


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
    if not train:
        do = "raise `model.max_tokens`, which ends before what is learned begins"
        raise UsageError("no example has anything to learn", where=config.data.file, do=do)
    check_known([each.ids for each in train], tokenizer, config.model.path)
    return train, held_out


def arithmetic(work: CausalWork, model: Any) -> list[str]:
    """What is trained on, in numbers."""
    config, train = work.config, work.train
    num_read = sum(each.num_read for each in train)
    num_targets = sum(each.num_targets for each in train)
    lines = [
        f"{counted(len(train), 'example')} to train on and {len(work.held_out)} held out; {num_read:,} tokens an epoch, "
        f"{num_targets:,} of them learned ({num_targets / num_read:.0%})",
        steps_in_words(len(train), config),
        *layout_in_words([each.num_read for each in train], config, config.data.seed, work.model),
    ]
    if config.model.lora.rank:
        lines.append(weights_in_words(model, "an adapter"))
    return lines + twice(
        *([each.ids.tobytes() for each in part] for part in (train, work.held_out))
    )


def _keep(
    run: Run,
    evaluated: Evaluated,
    *,
    decoder: LoadedDecoder,
    tokenizer: Any,
    work: CausalWork,
    prompts: Prompts,
) -> Finetuned:
    place, merged = run.directory / MODEL_DIRECTORY, run.directory / MERGED_DIRECTORY
    write_json(run.directory / PROMPTS_FILE, prompts)
    lora, trusted = work.config.model.lora, work.config.model.trust_remote_code
    tokens = [each.ids for each in work.train[:CHECKED]]
    if decoder.adapter is None:
        export(decoder.model, tokenizer, place, tokens, auto="AutoModelForCausalLM", trusted=trusted)  # fmt: skip
    else:
        export_adapter(decoder.adapter, lora, tokenizer, place, tokens, merged, precision=work.config.train.precision, trusted=trusted)  # fmt: skip
    told = None
    if (newest := evaluated.chosen) is not None:
        assert newest.metrics is not None
        told = TaskScores(
            work.config.task,
            held_out_loss=newest.loss if newest.averaged_loss is None else newest.averaged_loss,
            perplexity=newest.metrics["perplexity"],
            num_targets=newest.num_targets,
            step=newest.step,
            stopped_early=evaluated.stopped_early,
        )
    kept = str(merged) if lora.rank and lora.merge else None
    return Finetuned(evaluated.training, told, str(place), kept, decoder.adapter is not None)
