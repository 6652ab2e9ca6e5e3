"""Entities in a text: a tag for each of its words.

The first token of a word is labelled and predicted, the others of it are only read. Entities are counted as seqeval and
conlleval do: right are those of the same kind from the same first to the same last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hotloop.core.task_scores import TaskScores
from hotloop.finetune.scores import class_scores, total_score

UNLABELLED = -100
"""Of a token that is only read, as everywhere in torch."""
Entity = tuple[str, int, int]
"""Its kind, its first word and its last."""


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Of tags as IOB2 has them. A model may also begin one with I-."""
    found: list[Entity] = []
    begin, open_kind = 0, ""
    for number, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        if open_kind and (mark != "I" or kind != open_kind):
            found.append((open_kind, begin, number - 1))
            open_kind = ""
        if kind and not open_kind:
            begin, open_kind = number, kind
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """The tags of one text, by token and by word."""

    of_tokens: np.ndarray
    """int64, `UNLABELLED` where none is predicted."""
    word_of: tuple[int, ...]
    """The word of each token that is labelled. One behind the longest text that is read has none."""
    tags: tuple[str, ...]
    """Of each word."""

    @property
    def num_labelled(self) -> int:
        return len(self.word_of)


@dataclass(frozen=True, slots=True)
class Entities:
    kinds: tuple[str, ...]
    model_class: str = "AutoModelForTokenClassification"
    problem: str | None = None
    reads: str = "each"
    num_targets: int = 1

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("O", *(f"{mark}-{kind}" for kind in self.kinds for mark in "BI"))

    def label(self, label: Sequence[str], words: np.ndarray | None) -> Labelled:
        assert words is not None
        number = {name: place for place, name in enumerate(self.outputs)}
        first = (words >= 0) & (np.diff(words, prepend=-1) != 0)
        of_tokens = np.full(len(words), UNLABELLED, dtype=np.int64)
        of_tokens[first] = [number[label[word]] for word in words[first]]
        return Labelled(of_tokens, tuple(words[first].tolist()), tuple(label))

    def weight(self, labels: Sequence[Labelled]) -> int:
        return sum(each.num_labelled for each in labels)

    def balance(self, labels: Sequence[Labelled]) -> float:
        return 1.0

    def targets(self, labels: Sequence[Labelled], balance: float = 1.0) -> tuple[Tensor, ...]:
        return (torch.from_numpy(np.concatenate([each.of_tokens for each in labels])),)

    def loss(self, logits: Tensor, *targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets[0], ignore_index=UNLABELLED, reduction="sum")

    def tally(self) -> _Tally:
        return _Tally(self)

    def scores(self, metrics: dict[str, Any]) -> TaskScores:
        return TaskScores(
            "tokens",
            self.kinds,
            accuracy=metrics["accuracy"],
            precision=metrics["precision"],
            recall=metrics["recall"],
            f1=metrics["f1"],
            by_class=tuple(class_scores(metrics["counts"], self.kinds)),
        )


class _Tally:
    def __init__(self, head: Entities) -> None:
        self._head = head
        self._counts = {kind: [0, 0, 0] for kind in head.kinds}
        self._num = self._num_right = 0

    def add(self, logits: Tensor, targets: Sequence[Tensor], labels: Sequence[Labelled]) -> None:
        guesses = logits.argmax(1)[targets[0] != UNLABELLED].tolist()
        begin = 0
        for own in labels:
            predicted = ["O"] * len(own.tags)
            for word, guess in zip(own.word_of, guesses[begin:], strict=False):
                predicted[word] = self._head.outputs[guess]
            begin += own.num_labelled
            self.count(predicted, own.tags)

    def count(self, predicted: Sequence[str], true: Sequence[str]) -> None:
        self._num += len(true)
        self._num_right += sum(a == b for a, b in zip(predicted, true, strict=True))
        found, wanted = set(entities_of(predicted)), set(entities_of(true))
        for place, each in enumerate((found & wanted, found, wanted)):
            for kind, _, _ in each:
                self._counts[kind][place] += 1

    def metrics(self) -> dict[str, Any]:
        counts = list(self._counts.values())
        total = total_score(counts)
        return {
            "accuracy": self._num_right / max(self._num, 1),
            "precision": total.precision or 0.0,
            "recall": total.recall or 0.0,
            "f1": total.f1 or 0.0,
            "counts": counts,
        }
