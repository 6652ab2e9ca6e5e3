"""Trains with many small Python objects alive, and collects garbage every 4 steps "to save memory".

`--healthy` leaves collecting to Python.
"""

import argparse
import gc
import random
import time

import torch
from torch import nn


def annotations():
    """What a dataset's index looks like once it is loaded: a dict and lists for each record."""
    draw = random.Random(1)
    return [
        {"name": f"{n:07}", "box": [draw.random() for _ in range(4)], "tags": [n % 7, n % 11]}
        for n in range(8192)
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    index = annotations()
    layers = [layer for _ in range(6) for layer in (nn.Linear(768, 768), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(768, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    inputs = torch.randn(16, 512, 768)

    for step in range(args.steps):
        if step == 10:
            start = time.perf_counter()
        first = step % 16 * 512
        boxes = torch.tensor([record["box"] for record in index[first : first + 512]])
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = nn.functional.mse_loss(model(inputs[step % 16]).float(), boxes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3 and not args.healthy:
            gc.collect()
    took = (time.perf_counter() - start) / (args.steps - 10)
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
