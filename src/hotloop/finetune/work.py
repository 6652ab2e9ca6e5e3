"""Labelled texts as the training loop reads them: which examples a step takes, and how the held-out ones do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hotloop.core.finetune_config import FinetuneConfig
from hotloop.finetune.classifier import Classifier
from hotloop.finetune.scores import metrics
from hotloop.finetune.tokens import Tokens
from hotloop.optimizations.precision.autocast import autocast
from hotloop.train.batches import Inputs, StepData, to_device
from hotloop.train.interruption import StopRequest
from hotloop.train.run import Run
from hotloop.train.work import EvaluationCut, HeldOut


@dataclass(frozen=True, slots=True)
class Labelled:
    """Tokenized examples and the number of each one's class."""

    tokens: Tokens
    labels: list[int]

    def inputs(self, model: Classifier, chosen: Sequence[int]) -> Inputs:
        """Arguments of `model`: labels, then what its `logits` takes."""
        order, arranged = model.arranged([self.tokens[index] for index in chosen])
        labels = [self.labels[chosen[index]] for index in order]
        return torch.tensor(labels, dtype=torch.int64), *arranged


@dataclass(frozen=True, slots=True)
class ClassificationWork:
    """Of one process: a step takes the same examples as with padding, whatever they are laid out as."""

    config: FinetuneConfig
    model: Classifier
    train: Labelled
    held_out: Labelled
    num_classes: int

    @property
    def loader(self) -> Mapping[str, Any]:
        layout = "packed" if self.model.packed else "length buckets"
        return {"kind": "memory", "num_workers": 0, "order": "shuffled", "layout": layout}

    @property
    def prefetch(self) -> int | None:
        return None

    @property
    def has_held_out(self) -> bool:
        return bool(self.held_out.labels)

    def read(self, step: int, *, own: Sequence[int], pinned: bool) -> StepData:
        size, per_step = self.config.train.microbatch, self.config.sequences_per_step
        num = len(self.train.labels)
        epoch, at = divmod(step, steps_per_epoch(num, per_step))
        order = _order(self.config.data.seed, epoch, num)
        chosen = order[at * per_step : (at + 1) * per_step]
        parts = [chosen[each * size : (each + 1) * size] for each in own]
        microbatches = [self.train.inputs(self.model, part) for part in parts if part]
        if pinned:
            microbatches = [tuple(each.pin_memory() for each in inputs) for inputs in microbatches]
        num_tokens = sum(len(self.train.tokens[index]) for index in chosen)
        return StepData(microbatches, len(chosen), num_tokens, len(chosen))

    def sample(self) -> Inputs:
        return self.train.inputs(self.model, range(min(4, len(self.train.labels))))

    @torch.no_grad()
    def evaluate(self, run: Run, stop: StopRequest) -> HeldOut | None:
        """Over all held-out examples, those of a length together."""
        held_out, size = self.held_out, self.config.train.microbatch
        chosen = range(min(self.config.eval.windows, len(held_out.labels)))
        if not chosen:
            return None
        order = sorted(chosen, key=lambda index: len(held_out.tokens[index]))
        confusion = torch.zeros(self.num_classes**2, dtype=torch.int64, device=run.device)
        total = torch.zeros((), device=run.device)
        self.model.eval()
        for begin in range(0, len(order), size):
            run.watchdog.passed()
            if stop.asked:
                break
            inputs = held_out.inputs(self.model, order[begin : begin + size])
            labels, *arranged = to_device(inputs, run.device)
            with autocast(run.device.type, self.config.train.precision):
                logits = self.model.logits(*arranged).float()
            total += F.cross_entropy(logits, labels, reduction="sum")
            cells = labels * self.num_classes + logits.argmax(1)
            confusion += torch.bincount(cells, minlength=self.num_classes**2)
        self.model.train()
        if run.group.summed(torch.tensor(int(stop.asked))) > 0:
            raise EvaluationCut
        counts = confusion.view(self.num_classes, self.num_classes).tolist()
        return HeldOut(total.item() / len(chosen), len(chosen), metrics(counts))


def steps_per_epoch(num_examples: int, per_step: int) -> int:
    """The last step of an epoch takes the examples that are left."""
    return -(-num_examples // per_step)


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, num: int) -> list[int]:
    """A permutation: a function of its arguments alone, so that a run that was killed goes on in the same order."""
    found: list[int] = np.random.default_rng([seed, epoch]).permutation(num).tolist()
    return found
