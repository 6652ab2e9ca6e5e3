"""One label for each text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hotloop.core.errors import UsageError
from hotloop.core.task_scores import TaskScores
from hotloop.finetune.heads import OfTexts
from hotloop.finetune.scores import class_scores, counts_of, metrics


@dataclass(frozen=True, slots=True, eq=False)
class OneLabel(OfTexts):
    outputs: tuple[str, ...]
    weights: Tensor | None = None
    """fp32, of each class; the loss stays a mean over examples."""
    problem: str | None = "single_label_classification"

    def label(self, label: str, words: object) -> int:
        return self.outputs.index(label)

    def targets(self, labels: Sequence[int], balance: float = 1.0) -> tuple[Tensor, ...]:
        return (torch.tensor(labels, dtype=torch.int64),)

    def loss(self, logits: Tensor, *targets: Tensor) -> Tensor:
        (classes,) = targets
        if self.weights is None:
            return F.cross_entropy(logits, classes, reduction="sum")
        each = F.cross_entropy(logits, classes, reduction="none")
        return (each * _on_device(self.weights, each.device)[classes]).sum()

    def tally(self) -> _Tally:
        return _Tally(len(self.outputs))

    def scores(self, metrics: dict[str, Any]) -> TaskScores:
        confusion = metrics["confusion"]
        return TaskScores(
            "classification",
            self.outputs,
            accuracy=metrics["accuracy"],
            macro_f1=metrics["macro_f1"],
            confusion=tuple(map(tuple, confusion)),
            by_class=tuple(class_scores(counts_of(confusion), self.outputs)),
        )


@lru_cache(maxsize=4)
def _on_device(weights: Tensor, device: torch.device) -> Tensor:
    """Copied once: a copy in each step would wait for the GPU."""
    return weights.to(device)


class _Tally:
    def __init__(self, num_classes: int) -> None:
        self._num = num_classes
        self._confusion: Tensor | None = None

    def add(self, logits: Tensor, targets: Sequence[Tensor], labels: Sequence[int]) -> None:
        cells = targets[0] * self._num + logits.argmax(1)
        counts = torch.bincount(cells, minlength=self._num**2)  # stays on the device
        self._confusion = counts if self._confusion is None else self._confusion + counts

    def metrics(self) -> dict[str, Any]:
        assert self._confusion is not None
        return metrics(self._confusion.view(self._num, self._num).tolist())


def head(
    classes: Sequence[str], labels: Sequence[str], weights: str | Mapping[str, float] | None
) -> OneLabel:
    """Raises `UsageError` for a weight of a label that is not learned."""
    if weights is None:
        return OneLabel(tuple(classes))
    if isinstance(weights, str):
        # balanced: as scikit-learn has it, 1 in the mean over the examples
        counts = Counter(labels)
        each = [len(labels) / (len(classes) * max(counts[name], 1)) for name in classes]
    else:
        if unknown := sorted(weights.keys() - set(classes)):
            raise UsageError(
                f"`train.class_weights` has the label `{unknown[0]}`, which no training example has",
                do=f"the labels that are learned: {', '.join(classes[:10])}",
            )
        each = [weights.get(name, 1.0) for name in classes]
    return OneLabel(tuple(classes), torch.tensor(each, dtype=torch.float32))
