"""Trains a regression on rows of numbers that a collate function turns into tensors.

The rows are Python lists and become one tensor number by number, as in many a first version.
`--healthy` stores each row as a tensor and stacks them.
"""

import argparse
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS, FEATURES, BATCH = 1024, 768, 256


class Rows(Dataset):
    def __init__(self, as_tensors):
        draw = random.Random(1)
        rows = [[draw.random() for _ in range(FEATURES)] for _ in range(ROWS)]
        self.targets = [sum(row[:8]) for row in rows]
        self.rows = [torch.tensor(row) for row in rows] if as_tensors else rows

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"features": self.rows[index], "target": self.targets[index]}


def collate_lists(samples):
    features = torch.tensor([sample["features"] for sample in samples])
    return features, torch.tensor([sample["target"] for sample in samples])


def collate_tensors(samples):
    features = torch.stack([sample["features"] for sample in samples])
    return features, torch.tensor([sample["target"] for sample in samples])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    collate = collate_tensors if args.healthy else collate_lists
    loader = DataLoader(Rows(args.healthy), batch_size=BATCH, shuffle=True, collate_fn=collate)
    model = nn.Sequential(
        nn.Linear(FEATURES, 2048), nn.ReLU(),
        nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

    step = 0
    while step < args.steps:
        for features, target in loader:
            if step == 10:
                start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = nn.functional.mse_loss(model(features).squeeze(1).float(), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps:
                break
    took = (time.perf_counter() - start) / (args.steps - 10)
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
