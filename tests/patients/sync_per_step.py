"""Trains on a GPU and reads the loss back from it after every step. Needs a CUDA device.

`--healthy` adds the losses up on the device and reads the sum once, at the end.
"""

import argparse
import time

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    layers = [layer for _ in range(24) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.randn(64, 1024, 512, device="cuda")
    targets = torch.randint(10, (64, 1024), device="cuda")

    total = 0.0 if not args.healthy else torch.zeros((), device="cuda")
    for step in range(args.steps):
        if step == 10:
            start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(inputs[step % 64])
            loss = nn.functional.cross_entropy(logits, targets[step % 64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.healthy:
            total += loss.detach()
        else:
            for _ in range(3):  # the mean, the bar and the log each ask for it
                total += loss.item() / 3
    total = float(total)
    took = (time.perf_counter() - start) / (args.steps - 10)
    print(f"loss {total / args.steps:.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
