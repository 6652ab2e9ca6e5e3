"""Two spawned loader workers over a trivial dataset: 80 updates; `--unguarded` without the main guard."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 1280

    def __getitem__(self, index):
        return torch.full((64,), index / 1280), index % 4


def main():
    torch.manual_seed(0)
    model = nn.Linear(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    made = 0
    for rows, labels in DataLoader(Rows(), 16, num_workers=2, multiprocessing_context="spawn"):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        made += 1
    print("updates", made, f"loss {loss.item():.5f}")


if __name__ == "__main__" or "--unguarded" in sys.argv:
    main()
