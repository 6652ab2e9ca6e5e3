"""Examples as the training loop reads them: which examples a step takes, and how the held-out ones do."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from hotloop.core.causal_config import CausalConfig
from hotloop.core.child import LONGEST_FIRST
from hotloop.core.finetune_config import FinetuneConfig, FinetuneLoop
from hotloop.finetune.classifier import Classifier, in_fp32
from hotloop.finetune.microbatches import (
    PACKED,
    Laid,
    computed,
    divided,
    divided_sorted,
    in_words,
)
from hotloop.finetune.tokens import Tokens
from hotloop.finetune.vocabulary import UsedRows
from hotloop.optimizations.compiling.trainer import parts_uncompiled
from hotloop.optimizations.precision.autocast import autocast
from hotloop.report.numbers import counted
from hotloop.train.batches import Inputs, StepData, to_device
from hotloop.train.interruption import StopRequest
from hotloop.train.run import Run
from hotloop.train.work import EvaluationCut, HeldOut

E = TypeVar("E")
LOOKED_AT = 200
"""Steps of which is said how they are laid out."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """Tokenized examples and the label of each one, as the head takes it."""

    tokens: Tokens
    labels: list[Any]

    def inputs(self, model: Classifier, chosen: Sequence[int], balance: float) -> Inputs:
        """Arguments of `model`."""
        return self.with_labels(model, chosen, balance)[0]

    def with_labels(
        self, model: Classifier, chosen: Sequence[int], balance: float
    ) -> tuple[Inputs, list[Any]]:
        """The same, and the labels in their order."""
        order, arranged = model.arranged([self.tokens[index] for index in chosen])
        labels = [self.labels[chosen[index]] for index in order]
        return (*model.head.targets(labels, balance), *arranged), labels


class InMemory:
    """What works share whose examples the process reads that trains on them."""

    model: Any
    prefetch: int | None = None

    @property
    def loader(self) -> Mapping[str, Any]:
        buckets = "length buckets" if self.model.buckets > 1 else "padded"
        layout = "packed" if self.model.packed else buckets
        return {"kind": "memory", "num_workers": 0, "order": "shuffled", "layout": layout}


@dataclass(frozen=True, slots=True)
class FinetuneWork(InMemory):
    """Of one process: a step takes the same examples as with padding, whatever they are laid out as."""

    config: FinetuneConfig
    model: Classifier
    train: Labelled
    held_out: Labelled
    used: UsedRows | None = None
    """`None` where the whole table of token embeddings is trained."""

    @property
    def has_held_out(self) -> bool:
        return bool(self.held_out.labels)

    def read(self, step: int, *, own: Sequence[int], pinned: bool) -> StepData:
        tokens = self.train.tokens
        step = longest_first(step, self.config, len(tokens), lambda at: len(tokens[at]), self.model)
        chosen = chosen_in(step, self.config, self.config.data.seed, len(tokens))
        labels = [self.train.labels[index] for index in chosen]
        balance = self.model.head.balance(labels)
        lengths = [len(tokens[index]) for index in chosen]
        parts = divided(lengths, self.config.train, self.model)
        microbatches = in_microbatches(
            chosen, parts, lambda part: self.train.inputs(self.model, part, balance), pinned
        )
        # at least 1: of words that the tokenizer does not know there may be none
        num_targets = max(self.model.head.weight(labels), 1)
        return StepData(microbatches, num_targets, sum(lengths), len(chosen))

    def sample(self) -> Inputs:
        return self.train.inputs(self.model, range(min(4, len(self.train.labels))), 1.0)

    @torch.no_grad()
    def evaluate(self, run: Run, stop: StopRequest) -> HeldOut | None:
        """Over all held-out examples, those of a length together."""
        held_out = self.held_out
        chosen = spread(len(held_out.labels), self.config.eval.windows)
        if not chosen:
            return None
        lengths = [len(held_out.tokens[index]) for index in chosen]
        parts = divided_sorted(lengths, self.config.train, self.model)
        head = self.model.head
        labels = [held_out.labels[index] for index in chosen]
        balance, num_targets = head.balance(labels), max(head.weight(labels), 1)
        tally = head.tally()
        total = torch.zeros((), device=run.device)
        for part in held_out_parts(run, self.model, stop, chosen, parts):
            inputs, labels = held_out.with_labels(self.model, part, balance)
            on_device = to_device(inputs, run.device)
            targets, arranged = on_device[: head.num_targets], on_device[head.num_targets :]
            with autocast(run.device.type, self.config.train.precision):
                logits = in_fp32(self.model.logits(*arranged))
            total += head.loss(logits, *targets)
            tally.add(logits, targets, labels)
        return HeldOut(total.item() / num_targets, num_targets, tally.metrics())


def spread(num: int, most: int) -> list[int]:
    """Up to `most` of `num` held-out examples, from all over the file, which may be sorted by label."""
    few = min(num, most)
    return [place * num // few for place in range(few)]


def held_out_parts(
    run: Run, model: nn.Module, stop: StopRequest, chosen: Sequence[E], parts: list[list[int]]
) -> Iterator[list[E]]:
    """`chosen`, with the model evaluating; parts: places among them. Raises `EvaluationCut`, on all ranks."""
    model.eval()
    with parts_uncompiled(run.model, run.config.train.compile):
        for part in parts:
            run.watchdog.passed()
            if stop.asked:
                break
            yield [chosen[at] for at in part]
    model.train()
    if run.group.summed(torch.tensor(int(stop.asked))) > 0:
        raise EvaluationCut


def chosen_in(step: int, config: FinetuneLoop, seed: int, num: int) -> list[int]:
    """The examples, of `num`, that a step takes: the next ones of its epoch's permutation, in the last step what is left."""
    per_step = config.sequences_per_step
    epoch, at = divmod(step, steps_per_epoch(num, per_step))
    return epoch_order(seed, epoch, num)[at * per_step : (at + 1) * per_step]


def longest_first(
    step: int,
    config: FinetuneConfig | CausalConfig,
    num: int,
    length: Callable[[int], int],
    model: Laid,
) -> int:
    """The step itself; where `LONGEST_FIRST` asks for it, in place of the first two of a training its step with the widest
    microbatch, and that with the longest example, whose attention is the largest.

    num: examples. length: of the one at a place.
    """
    if step > 1 or LONGEST_FIRST not in os.environ:
        return step

    def size(each: int) -> tuple[int, int]:
        own = np.array([length(at) for at in chosen_in(each, config, config.data.seed, num)])
        buckets = PACKED if model.packed else model.buckets
        parts = divided(own.tolist(), config.train, model)
        widest, longest = max(computed(own[part], buckets) for part in parts), int(own.max())
        return (widest, longest) if step == 0 else (longest, widest)

    steps = config.train.epochs * steps_per_epoch(num, config.sequences_per_step)
    return max(range(steps), key=size)


def in_microbatches(
    chosen: Sequence[int],
    parts: Sequence[Sequence[int]],
    inputs: Callable[[list[int]], Inputs],
    pinned: bool,
) -> list[Inputs]:
    """Each part, places in `chosen`, as arguments of the model."""
    found = [inputs([chosen[at] for at in part]) for part in parts]
    if not pinned:
        return found
    # somebody's own examples may be on the GPU already
    return [tuple(t if t.is_cuda else t.pin_memory() for t in each) for each in found]


def steps_per_epoch(num_examples: int, per_step: int) -> int:
    """The last step of an epoch takes the examples that are left."""
    return -(-num_examples // per_step)


def steps_in_words(num_examples: int, config: FinetuneLoop) -> str:
    each, steps = steps_per_epoch(num_examples, config.sequences_per_step), config.train.steps
    epochs = f"{steps / each:g} {'epoch' if steps == each else 'epochs'}"
    return f"{counted(each, 'step')} of {counted(config.sequences_per_step, 'example')} an epoch, {counted(steps, 'step')} in {epochs}"


def layout_in_words(
    lengths: Sequence[int], config: FinetuneLoop, seed: int, model: Laid
) -> list[str]:
    """Of the first steps: what padding costs there, and how they are divided."""
    each = steps_per_epoch(len(lengths), config.sequences_per_step)
    when = "the first epoch" if each <= LOOKED_AT else f"the first {LOOKED_AT} steps"
    return in_words(lengths_of_steps(lengths, config, seed), when, config.train, model)


def lengths_of_steps(lengths: Sequence[int], config: FinetuneLoop, seed: int) -> list[np.ndarray]:
    """Of the examples of each step, up to `LOOKED_AT` steps of the first epoch."""
    each = steps_per_epoch(len(lengths), config.sequences_per_step)
    steps = [chosen_in(step, config, seed, len(lengths)) for step in range(min(each, LOOKED_AT))]
    return [np.array([lengths[index] for index in chosen]) for chosen in steps]


def twice(train: Iterable[Hashable], held_out: Sequence[Hashable]) -> list[str]:
    """What to tell of held-out examples that are trained on, too."""
    known = {*train}
    num = sum(each in known for each in held_out)
    what = "held out and trained on, too, so that measures look better than they are"
    return [f"{what}: {counted(num, 'example')}"] if num else []


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, num: int) -> list[int]:
    """A permutation: a function of its arguments alone, so that a run that was killed goes on in the same order."""
    found: list[int] = np.random.default_rng([seed, epoch]).permutation(num).tolist()
    return found
