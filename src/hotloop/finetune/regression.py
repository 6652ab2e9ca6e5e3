"""A number for each text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class FullPrecision(nn.Linear):
    """Computes in fp32, also under autocast: bf16 has every eighth of the years."""

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(input.device.type):
            return super().forward(input)
        # not as a product of matrices, which are of one type in a run
        found = (input.float() * self.weight).sum(-1, keepdim=True)
        return found if self.bias is None else found + self.bias


def in_full_precision(model: nn.Module) -> None:
    """Have the layer that gives the number be one."""
    linear = [each for each in model.modules() if isinstance(each, nn.Linear)]
    if linear and linear[-1].out_features == 1:
        linear[-1].__class__ = FullPrecision


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
