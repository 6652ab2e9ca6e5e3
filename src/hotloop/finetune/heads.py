"""What is learned of an example, one file each: `labels`, `multilabel`, `regression`, `entities`, and `joint` of two.

A head says which class of transformers computes it, what its loss is, and how well it does. How examples are laid out and
computed is the same for all of them (`classifier.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from hotloop.core.finetune_config import FinetuneConfig
from hotloop.core.task_scores import TaskScores

Logits = Any
"""A tensor: (examples, outputs), or (tokens, outputs) of a head that reads every token. Of `joint` both."""


class Tally(Protocol):
    """An evaluation under way."""

    def add(self, logits: Logits, targets: Sequence[Tensor], labels: Sequence[Any]) -> None:
        """A microbatch, in one order; logits in fp32 and targets on the device."""

    def metrics(self) -> dict[str, Any]:
        """What was found, JSON-ready, as `Head.scores` reads it."""


class Head(Protocol):
    @property
    def model_class(self) -> str:
        """The class of transformers, such as `AutoModelForSequenceClassification`."""

    @property
    def problem(self) -> str | None:
        """What `problem_type` of its config says, for others that load it."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the model's outputs."""

    @property
    def reads(self) -> str:
        """`first`: logits are of the first token of each example; `each`: of every token; `both`."""

    @property
    def num_targets(self) -> int:
        """Tensors that `targets` makes."""

    def label(self, label: Any, words: np.ndarray | None) -> Any:
        """The label of an example as `targets` takes it. words: which word each token is of, -1 for none."""

    def weight(self, labels: Sequence[Any]) -> int:
        """What the loss of these examples is the mean over: examples, or words."""

    def balance(self, labels: Sequence[Any]) -> float:
        """What `targets` has to know of all examples of a step."""

    def targets(self, labels: Sequence[Any], balance: float) -> tuple[Tensor, ...]: ...

    def loss(self, logits: Logits, *targets: Tensor) -> Tensor:
        """Summed over what `weight` counts."""

    def tally(self) -> Tally: ...

    def scores(self, metrics: dict[str, Any]) -> TaskScores: ...


class OfTexts:
    """What heads share that read the first token of a text and are trained on the mean over texts."""

    model_class = "AutoModelForSequenceClassification"
    reads = "first"
    num_targets = 1

    def weight(self, labels: Sequence[Any]) -> int:
        return len(labels)

    def balance(self, labels: Sequence[Any]) -> float:
        return 1.0


def head_of(
    config: FinetuneConfig, classes: Sequence[str], kinds: Sequence[str], labels: Sequence[Any]
) -> Head:
    """labels: those that are trained on, as the file has them. Raises `UsageError`."""
    from hotloop.finetune import entities, joint, multilabel, regression
    from hotloop.finetune import labels as one_label

    match config.task:
        case "classification":
            return one_label.head(classes, labels, config.train.class_weights)
        case "multilabel":
            return multilabel.MultiLabel(tuple(classes))
        case "regression":
            return regression.Number(tuple(classes))
        case "tokens":
            return entities.Entities(tuple(kinds))
        case "classification+tokens":
            only = [label for label, _ in labels]
            first = one_label.head(classes, only, config.train.class_weights)
            return joint.Joint(first, entities.Entities(tuple(kinds)))
