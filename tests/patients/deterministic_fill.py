"""Trains with deterministic algorithms, which fill all memory that is allocated: here a buffer for the longest batch.

`--healthy` leaves the filling out. The algorithms, and so the losses, are the same.
"""

import argparse
import time

import torch
from torch import nn

LONGEST = 32_000


class Gathered(nn.Module):
    """The batch at the start of a buffer that would hold the longest one."""

    def forward(self, batch):
        buffer = torch.empty(LONGEST, batch.shape[1])
        return buffer[: len(batch)].copy_(batch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = not args.healthy

    bf16 = torch.cpu._is_avx512_bf16_supported()

    layers = [layer for _ in range(12) for layer in (nn.Linear(384, 384), nn.ReLU())]
    model = nn.Sequential(Gathered(), *layers, nn.Linear(384, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    inputs, labels = torch.randn(16, 256, 384), torch.randint(10, (16, 256))

    for step in range(args.steps):
        if step == 10:
            start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = nn.functional.cross_entropy(model(inputs[step % 16]), labels[step % 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    took = (time.perf_counter() - start) / (args.steps - 10)
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
