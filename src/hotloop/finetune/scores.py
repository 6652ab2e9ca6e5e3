"""How well labels are predicted, from counts of what was predicted for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop.core.task_scores import ClassScore

Confusion = list[list[int]]
"""Held-out examples by true class (row) and predicted class (column)."""
Counts = Sequence[Sequence[int]]
"""For each class how many were predicted rightly, predicted, and true."""


def accuracy(confusion: Confusion) -> float:
    total = sum(map(sum, confusion))
    return sum(row[number] for number, row in enumerate(confusion)) / total


def counts_of(confusion: Confusion) -> list[list[int]]:
    return [
        [confusion[number][number], sum(row[number] for row in confusion), sum(confusion[number])]
        for number in range(len(confusion))
    ]


def class_score(label: str, right: int, predicted: int, true: int) -> ClassScore:
    return ClassScore(
        label,
        precision=right / predicted if predicted else None,
        recall=right / true if true else None,
        f1=2 * right / (true + predicted) if true + predicted else None,
        num_examples=true,
    )


def class_scores(counts: Counts, classes: Sequence[str]) -> list[ClassScore]:
    return [class_score(label, *own) for label, own in zip(classes, counts, strict=True)]


def mean_f1(counts: Counts) -> float:
    """Mean over the classes that are true or predicted somewhere, as scikit-learn has it of one label per text."""
    known = [2 * right / (true + predicted) for right, predicted, true in counts if true + predicted]  # fmt: skip
    return sum(known) / len(known) if known else 0.0


def total_score(counts: Counts) -> ClassScore:
    """Of all classes together, each example (or entity) counted alike."""
    return class_score("", *(sum(own[place] for own in counts) for place in range(3)))


def metrics(confusion: Confusion) -> dict[str, Any]:
    """What an evaluation of one label per text records."""
    return {
        "accuracy": accuracy(confusion),
        "macro_f1": mean_f1(counts_of(confusion)),
        "confusion": confusion,
    }
