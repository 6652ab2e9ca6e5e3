"""A label and the entities of each text, by two heads on one encoder: the sum of both losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.core.task_scores import TaskScores
from hotloop.finetune.entities import Entities, Labelled
from hotloop.finetune.labels import OneLabel

Pair = tuple[int, Labelled]


@dataclass(frozen=True, slots=True)
class Joint:
    first: OneLabel
    each: Entities
    problem: str | None = None
    reads: str = "both"
    num_targets: int = 3

    @property
    def model_class(self) -> str:
        return self.first.model_class

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.first.outputs

    def label(self, label: tuple[str, Sequence[str]], words: np.ndarray | None) -> Pair:
        return self.first.label(label[0], None), self.each.label(label[1], words)

    def weight(self, labels: Sequence[Pair]) -> int:
        return len(labels)

    def balance(self, labels: Sequence[Pair]) -> float:
        """What a word counts, in examples: both losses are means, of examples and of words."""
        return len(labels) / max(self.each.weight([tags for _, tags in labels]), 1)

    def targets(self, labels: Sequence[Pair], balance: float) -> tuple[Tensor, ...]:
        classes, tagged = [label for label, _ in labels], [tags for _, tags in labels]
        return *self.first.targets(classes), *self.each.targets(tagged), torch.tensor(balance)

    def loss(self, logits: tuple[Tensor, Tensor], *targets: Tensor) -> Tensor:
        classes, tags, share = targets
        return self.first.loss(logits[0], classes) + share * self.each.loss(logits[1], tags)

    def tally(self) -> _Tally:
        return _Tally(self)

    def scores(self, metrics: dict[str, Any]) -> TaskScores:
        return replace(
            self.first.scores(metrics["labels"]),
            task="classification+tokens",
            mean_f1=metrics["mean_f1"],
            entities=self.each.scores(metrics["entities"]),
        )


class _Tally:
    def __init__(self, head: Joint) -> None:
        self._first, self._each = head.first.tally(), head.each.tally()

    def add(
        self, logits: tuple[Tensor, Tensor], targets: Sequence[Tensor], labels: Sequence[Pair]
    ) -> None:
        self._first.add(logits[0], targets[:1], [label for label, _ in labels])
        self._each.add(logits[1], targets[1:2], [tags for _, tags in labels])

    def metrics(self) -> dict[str, Any]:
        labels, entities = self._first.metrics(), self._each.metrics()
        mean = (labels["macro_f1"] + entities["f1"]) / 2
        return {"mean_f1": mean, "labels": labels, "entities": entities}
