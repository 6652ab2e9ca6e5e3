"""Two training processes without ranks: `spawn` (each its own weights) or `hogwild` (the same weights).

60 updates in each process.
"""

import sys

import torch
import torch.multiprocessing as mp
from torch import nn


def train(number, model):
    torch.manual_seed(number)
    torch.set_num_threads(1)
    model = model or nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    batches = torch.randn(8, 512, 256)
    for i in range(60):
        x = batches[i % 8]
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    shared = None
    if "hogwild" in sys.argv:
        shared = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).share_memory()
    mp.spawn(train, (shared,), nprocs=2)
    print("updates 60 in each of 2 processes")
