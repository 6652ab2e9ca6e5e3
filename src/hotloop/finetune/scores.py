"""How well labels are predicted, from counts of what was predicted for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Confusion = list[list[int]]
"""Held-out examples by true class (row) and predicted class (column)."""


@dataclass(frozen=True, slots=True)
class ClassScore:
    """`None` where a ratio has no examples to go by."""

    label: str
    precision: float | None
    recall: float | None
    f1: float | None
    num_examples: int


def accuracy(confusion: Confusion) -> float:
    total = sum(map(sum, confusion))
    return sum(row[number] for number, row in enumerate(confusion)) / total


def by_class(confusion: Confusion, classes: Sequence[str]) -> list[ClassScore]:
    found = []
    for number, label in enumerate(classes):
        right = confusion[number][number]
        true, predicted = sum(confusion[number]), sum(row[number] for row in confusion)
        found.append(
            ClassScore(
                label,
                precision=right / predicted if predicted else None,
                recall=right / true if true else None,
                f1=2 * right / (true + predicted) if true + predicted else None,
                num_examples=true,
            )
        )
    return found


def macro_f1(confusion: Confusion) -> float:
    """Mean over the classes that are true or predicted somewhere, as scikit-learn has it."""
    scores = [score.f1 for score in by_class(confusion, [""] * len(confusion))]
    known = [f1 for f1 in scores if f1 is not None]
    return sum(known) / len(known)


def metrics(confusion: Confusion) -> dict[str, Any]:
    """What an evaluation records."""
    return {
        "accuracy": accuracy(confusion),
        "macro_f1": macro_f1(confusion),
        "confusion": confusion,
    }


def described(confusion: Confusion, classes: Sequence[str]) -> dict[str, Any]:
    """For `task.json`."""
    return {
        "task": "classification",
        "classes": list(classes),
        **metrics(confusion),
        "by_class": [asdict(score) for score in by_class(confusion, classes)],
        "schema": "hotloop.task/1",
    }
