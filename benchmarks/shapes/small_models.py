"""Small models whose step one known thing holds back.

python small_models.py MODEL [STEPS]
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F


class Tokens(nn.Module):
    """A transformer over 64 tokens: the next is known from the one before."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(ids)))


class Elementwise(nn.Module):
    """Many operations on each element, which a compiler puts together."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(5):
            x = x + 0.01 * (x * x * 0.1 - x.abs() * 0.2 + torch.relu(x + 0.1))
        return self.last(x)


def perceptron(width: int, depth: int) -> nn.Module:
    layers = [
        each
        for _ in range(depth)
        for each in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
    ]
    return nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 64))


def pictures(width: int) -> nn.Module:
    parts = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(4):
        parts += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 64))


MODELS = {
    "deep-perceptron": lambda: perceptron(64, 24),
    "wide-perceptron": lambda: perceptron(1024, 4),
    "tokens": lambda: Tokens(64, 4),
    "wide-tokens": lambda: Tokens(384, 3),
    "pictures": lambda: pictures(64),
    "elementwise": Elementwise,
}


def batches(name: str, model: nn.Module):
    """Inputs and the function that gives the loss, the same in each run."""
    draw = torch.Generator().manual_seed(1)
    if "tokens" in name:
        ids = torch.randint(64, (256, 65), generator=draw)
        ids[:, 1:] = (ids[:, :-1] * 5 + 3) % 64
        while True:
            chosen = ids[torch.randint(256, (8,), generator=draw)]
            yield chosen[:, :-1], chosen[:, 1:].flatten()
    shape = (16, 3, 32, 32) if name == "pictures" else (256, 64)
    classes = torch.randn(64, *shape[1:], generator=draw)
    while True:
        labels = torch.randint(64, (shape[0],), generator=draw)
        yield classes[labels] + 0.5 * torch.randn(shape, generator=draw), labels


def main(name: str, steps: int) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    source = batches(name, model)
    for number in range(steps):
        inputs, labels = next(source)
        loss = F.cross_entropy(model(inputs).flatten(0, -2), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 100 == 0:
            print(f"step {number}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 500)
