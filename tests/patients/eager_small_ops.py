"""Trains blocks whose activation and norm are written out in small tensor operations.

`--healthy` calls torch's own layer for each.
"""

import argparse
import time

import torch
from torch import nn

WIDTH, BLOCKS = 256, 2


def leaky_relu_written_out(x):
    nothing = torch.zeros_like(x)
    return torch.maximum(x, nothing) + 0.01 * torch.minimum(x, nothing)


class NormWrittenOut(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        spread = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(spread + 1e-5) * self.weight + self.bias


class Block(nn.Module):
    def __init__(self, norm, activation):
        super().__init__()
        self.norm = norm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.activation = activation
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.narrow(self.activation(self.wide(self.norm(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    parts = (nn.LayerNorm, nn.functional.leaky_relu)
    if not args.healthy:
        parts = (NormWrittenOut, leaky_relu_written_out)
    model = nn.Sequential(*[Block(*parts) for _ in range(BLOCKS)], nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    inputs, labels = torch.randn(16, 1024, WIDTH), torch.randint(10, (16, 1024))

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
