"""Any number of labels for each text; each is yes or no by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hotloop.core.task_scores import TaskScores
from hotloop.finetune.heads import OfTexts
from hotloop.finetune.scores import class_score, class_scores, total_score


@dataclass(frozen=True, slots=True)
class MultiLabel(OfTexts):
    outputs: tuple[str, ...]
    problem: str | None = "multi_label_classification"

    def label(self, label: Sequence[str], words: object) -> list[float]:
        return [float(name in label) for name in self.outputs]

    def targets(self, labels: Sequence[list[float]], balance: float = 1.0) -> tuple[Tensor, ...]:
        return (torch.tensor(labels, dtype=torch.float32),)

    def loss(self, logits: Tensor, *targets: Tensor) -> Tensor:
        """Of an example the mean over its labels, as transformers has it."""
        return F.binary_cross_entropy_with_logits(logits, targets[0], reduction="sum") / len(
            self.outputs
        )

    def tally(self) -> _Tally:
        return _Tally(len(self.outputs))

    def scores(self, metrics: dict[str, Any]) -> TaskScores:
        return TaskScores(
            "multilabel",
            self.outputs,
            accuracy=metrics["accuracy"],
            macro_f1=metrics["macro_f1"],
            micro_f1=metrics["micro_f1"],
            by_class=tuple(class_scores(metrics["counts"], self.outputs)),
        )


class _Tally:
    def __init__(self, num_classes: int) -> None:
        self._counts = torch.zeros(num_classes, 3, dtype=torch.int64)
        self._num = self._num_exact = 0

    def add(self, logits: Tensor, targets: Sequence[Tensor], labels: Sequence[Any]) -> None:
        predicted, true = (logits > 0).cpu(), (targets[0] > 0.5).cpu()
        self._counts += torch.stack([(predicted & true).sum(0), predicted.sum(0), true.sum(0)], 1)
        self._num += len(true)
        self._num_exact += int((predicted == true).all(1).sum())

    def metrics(self) -> dict[str, Any]:
        counts = self._counts.tolist()
        return {
            "accuracy": self._num_exact / self._num,
            # of a label that is neither true nor predicted 0, as scikit-learn has it
            "macro_f1": sum(class_score("", *own).f1 or 0.0 for own in counts) / len(counts),
            "micro_f1": total_score(counts).f1 or 0.0,
            "counts": counts,
        }
