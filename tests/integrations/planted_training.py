"""A training whose loader waits for each item, and what it shows of torch's entry points."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

WAIT_S = 0.003  # a step without it takes up to 5 ms where other programs run
BATCH = 8


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, num: int, *, breaks_at: int | None = None) -> None:
        self.num, self.breaks_at = num, breaks_at

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(WAIT_S)
        if index == self.breaks_at:
            raise RuntimeError(f"row {index} is broken")
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(32, generator=generator), "labels": torch.tensor(index % 4)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def entries() -> list[Any]:
    """What a watch hooks."""
    return [
        *(nn.Module.__call__, torch.Tensor.backward, torch.Tensor.item),
        *(torch.save, torch.utils.data.DataLoader.__iter__, torch.optim.Optimizer.__init__),
    ]
