"""A small classifier whose pictures are augmented on the training thread: scaled, cropped, flipped, tinted.

python augmented.py pictures [STEPS]
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

BATCH, PER_EPOCH = 32, 40


class Pictures(Dataset):
    """Of ten kinds, told apart by their colour."""

    def __init__(self, number: int = BATCH * PER_EPOCH) -> None:
        draw = np.random.default_rng(1)
        kinds = draw.integers(0, 170, (10, 3, 1, 1), dtype=np.uint8)
        self.labels = draw.integers(0, 10, number)
        noise = draw.integers(0, 80, (number, 3, 40, 40), dtype=np.uint8)
        self.pictures = kinds[self.labels] + noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = torch.from_numpy(self.pictures[index]).float().div(255)
        scale = 1 + 0.3 * torch.rand(()).item()
        size = int(40 * scale)
        picture = F.interpolate(
            picture[None], size=(size, size), mode="bicubic", align_corners=False
        )[0]
        top, left = np.random.randint(0, size - 32 + 1, 2)
        picture = picture[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        picture = picture * (0.8 + 0.4 * torch.rand(3, 1, 1))
        blurred = F.avg_pool2d(picture[None], 3, 1, 1)[0]
        picture = torch.lerp(picture, blurred, torch.rand(()).item())
        return picture, int(self.labels[index])


def main(steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    loader = DataLoader(Pictures(), batch_size=BATCH, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(steps // PER_EPOCH):
        for pictures, labels in loader:
            loss = F.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[2]) if len(sys.argv) > 2 else 200)
