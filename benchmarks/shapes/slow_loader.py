"""A small model that waits for its loader, in as many shapes as loaders are slow in.

python slow_loader.py SHAPE [STEPS]
"""

from __future__ import annotations

import sys
import time
import zlib

import torch
from torch.utils.data import DataLoader, Dataset

SHAPES = {
    # items per batch, workers, seconds that an item waits, kilobytes that it unpacks, seconds of a step besides
    "latency": (8, 0, 0.03, 0, 0.0),
    "short-latency": (4, 0, 0.01, 0, 0.02),
    "cpu": (16, 0, 0.0, 3000, 0.0),
    "cpu-and-step": (8, 0, 0.0, 3000, 0.03),
    "latency-and-cpu": (8, 0, 0.01, 1500, 0.0),
    "bursts": (4, 0, 0.01, 0, 0.02),
    "slow-first-step": (4, 0, 0.025, 0, 0.02),
    "few-workers": (4, 1, 0.05, 0, 0.02),
    "two-workers": (8, 2, 0.06, 0, 0.02),
    "many-workers": (2, 12, 0.0, 0, 0.0),
    "long-latency": (2, 0, 0.1, 0, 0.03),
    "latency-and-step": (8, 0, 0.02, 0, 0.08),
    "small-batch": (1, 0, 0.04, 0, 0.02),
    "three-workers": (8, 3, 0.05, 0, 0.03),
    "half-hidden": (4, 1, 0.02, 0, 0.05),
    "two-of-three": (8, 2, 0.03, 0, 0.04),
    "short-two-workers": (4, 2, 0.02, 0, 0.02),
    "wide-batches": (32, 0, 0.005, 0, 0.04),
    "unpacked-and-far": (4, 1, 0.03, 300, 0.03),
}
SIZE = 64


class Items(Dataset):
    def __init__(self, shape: str, number: int) -> None:
        _, _, self.wait_s, kilobytes, _ = SHAPES[shape]
        self.bursts = shape == "bursts"
        self.number = number
        self.packed = zlib.compress(bytes(range(256)) * (4 * kilobytes), 1)

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> torch.Tensor:
        # Every hundredth item is read from farther away.
        time.sleep(1.0 if self.bursts and index % 100 == 0 else self.wait_s)
        size = len(zlib.decompress(self.packed))
        draw = torch.Generator().manual_seed(index + size)
        return torch.randn(SIZE, generator=draw)


def main(shape: str, steps: int) -> None:
    torch.set_num_threads(
        1
    )  # nothing here is worth two, and they would wait for each other on a busy machine
    torch.manual_seed(0)
    batch_size, workers, _, _, step_s = SHAPES[shape]
    items = Items(shape, batch_size * steps)
    # Written out, as in scripts: no argument that one call decides for all.
    if workers == 0:
        loader = DataLoader(items, batch_size=batch_size, shuffle=True)
    elif workers == 1:
        loader = DataLoader(items, batch_size=batch_size, shuffle=True, num_workers=1)
    elif workers == 2:
        loader = DataLoader(items, batch_size=batch_size, shuffle=True, num_workers=2)
    elif workers == 3:
        loader = DataLoader(items, batch_size=batch_size, shuffle=True, num_workers=3)
    else:
        loader = DataLoader(items, batch_size=batch_size, shuffle=True, num_workers=12)
    model = torch.nn.Sequential(
        torch.nn.Linear(SIZE, 128), torch.nn.ReLU(), torch.nn.Linear(128, SIZE)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, batch in enumerate(loader):
        # As an accelerator that computes: it takes no CPU time.
        time.sleep(5.0 if number == 0 and shape == "slow-first-step" else step_s)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 20 == 0:
            print(f"step {number}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200)
