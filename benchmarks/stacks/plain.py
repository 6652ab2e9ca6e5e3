#!/usr/bin/env python
"""A plain loop of 60 updates that computes: what the ways to start a script start. Prints its arguments."""

import sys

import torch
from torch import nn


def train(updates=60):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batches = torch.randn(8, 512, 256)
    for i in range(updates):
        x = batches[i % 8]
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
    print("updates", updates, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    train()
