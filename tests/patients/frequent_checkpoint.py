"""Trains and saves model and optimizer every 3 steps, to be safe.

`--healthy` saves once, at the end.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn


def save(path, model, optimizer):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=True)
    inputs, labels = torch.randn(16, 512, 1024), torch.randint(10, (16, 512))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "latest.pt"
        for step in range(args.steps):
            if step == 10:
                start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = nn.functional.cross_entropy(model(inputs[step % 16]), labels[step % 16])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 3 == 2 and not args.healthy:
                save(path, model, optimizer)
        took = (time.perf_counter() - start) / (args.steps - 10)
        save(path, model, optimizer)
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
