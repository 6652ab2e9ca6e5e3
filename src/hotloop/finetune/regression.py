"""A number for each text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hotloop.core.task_scores import TaskScores
from hotloop.finetune.heads import OfTexts


@dataclass(frozen=True, slots=True)
class Number(OfTexts):
    outputs: tuple[str, ...]
    problem: str | None = "regression"

    def label(self, label: float, words: object) -> float:
        return label

    def targets(self, labels: Sequence[float], balance: float = 1.0) -> tuple[Tensor, ...]:
        return (torch.tensor(labels, dtype=torch.float32),)

    def loss(self, logits: Tensor, *targets: Tensor) -> Tensor:
        return F.mse_loss(logits[:, 0], targets[0], reduction="sum")

    def tally(self) -> _Tally:
        return _Tally()

    def scores(self, metrics: dict[str, Any]) -> TaskScores:
        return TaskScores("regression", self.outputs, **metrics)


class _Tally:
    def __init__(self) -> None:
        self._pairs: list[Tensor] = []

    def add(self, logits: Tensor, targets: Sequence[Tensor], labels: Sequence[Any]) -> None:
        self._pairs.append(torch.stack([logits[:, 0], targets[0]]).double().cpu())

    def metrics(self) -> dict[str, Any]:
        predicted, true = torch.cat(self._pairs, 1)
        error = predicted - true
        spread = float((true - true.mean()).square().sum())
        return {
            "mae": float(error.abs().mean()),
            "rmse": math.sqrt(float(error.square().mean())),
            # of numbers that are all the same there is none
            "r2": 1 - float(error.square().sum()) / spread if spread else None,
        }
