"""How well a fine-tuned model does on held-out examples: `task.json` of its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

TASK_FILE = "task.json"
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class ClassScore:
    """`None` where a ratio has no examples to go by."""

    label: str
    precision: float | None
    recall: float | None
    f1: float | None
    num_examples: Count
    """Held-out examples, or entities, that are of this label."""


@dataclass(frozen=True, slots=True)
class TaskScores:
    """Measures that the task does not have are `None`."""

    task: str
    classes: tuple[str, ...] = ()
    """Labels, or kinds of entities."""
    accuracy: float | None = None
    """Of `multilabel`: of whole sets of labels. Of `tokens`: of words."""
    macro_f1: float | None = None
    micro_f1: float | None = None
    precision: float | None = None
    """Of whole entities, as `recall` and `f1`."""
    recall: float | None = None
    f1: float | None = None
    mae: float | None = None
    rmse: float | None = None
    r2: float | None = None
    mean_f1: float | None = None
    """Of labels (macro) and entities."""
    held_out_loss: float | None = None
    """Of a decoder: mean over the tokens that are learned, in nats."""
    perplexity: float | None = None
    num_targets: Count | None = None
    """Held-out tokens that those two are over."""
    confusion: tuple[tuple[Count, ...], ...] | None = None
    """Held-out examples by true class (row) and predicted class (column)."""
    by_class: tuple[ClassScore, ...] = ()
    entities: TaskScores | None = None
    """Where labels and entities are learned together."""
    step: Count | None = None
    """After which the model was evaluated."""
    stopped_early: bool = False
    schema: str = "hotloop.task/1"

    def measures(self) -> dict[str, float]:
        """Those that the task has."""
        names = ("accuracy", "macro_f1", "micro_f1", "precision", "recall", "f1", "mae", "rmse", "r2", "mean_f1", "perplexity")  # fmt: skip
        return {name: value for name in names if (value := getattr(self, name)) is not None}
