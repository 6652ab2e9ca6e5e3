"""Trains on columns that are in memory already, through loader workers that only send them on.

Taking a batch is a matter of indexing 40 tensors; each of them then travels between processes.
`--healthy` uses no workers.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS, COLUMNS, VALUES, BATCH = 4096, 40, 16, 256


class Columns(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.columns = {
            f"column{number}": torch.randn(ROWS, VALUES, generator=generator)
            for number in range(COLUMNS)
        }
        self.target = self.columns["column0"].sum(1)

    def __len__(self):
        return ROWS

    def __getitems__(self, indices):
        indices = torch.tensor(indices)
        return {name: column[indices] for name, column in self.columns.items()}, self.target[
            indices
        ]


def as_it_is(batch):
    return batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    workers = {} if args.healthy else {"num_workers": 2, "persistent_workers": True}
    loader = DataLoader(Columns(), batch_size=BATCH, collate_fn=as_it_is, **workers)
    model = nn.Sequential(
        nn.Linear(COLUMNS * VALUES, 2048), nn.ReLU(),
        nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

    step = 0
    while step < args.steps:
        for columns, target in loader:
            if step == 10:
                start = time.perf_counter()
            features = torch.cat(list(columns.values()), dim=1)
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
