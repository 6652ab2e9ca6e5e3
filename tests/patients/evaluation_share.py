"""Trains and evaluates the whole validation set every 10 steps.

`--healthy` evaluates it once, at the end.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def evaluate(model, loader, bf16):
    model.eval()
    total = 0.0
    for inputs, labels in loader:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            total += nn.functional.cross_entropy(model(inputs), labels, reduction="sum").item()
    model.train()
    return total / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    inputs, labels = torch.randn(16, 512, 768), torch.randint(10, (16, 512))
    held_out = TensorDataset(torch.randn(4096, 768), torch.randint(10, (4096,)))
    validation = DataLoader(held_out, batch_size=256)
    layers = [layer for _ in range(6) for layer in (nn.Linear(768, 768), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(768, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)

    for step in range(args.steps):
        if step == 10:
            start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = nn.functional.cross_entropy(model(inputs[step % 16]), labels[step % 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9 and not args.healthy:
            print(f"step {step}: validation loss {evaluate(model, validation, bf16):.4f}")
    took = (time.perf_counter() - start) / (args.steps - 10)
    print(f"validation loss {evaluate(model, validation, bf16):.4f}")
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
