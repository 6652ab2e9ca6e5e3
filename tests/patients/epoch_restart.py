"""Trains in short epochs whose loader starts its worker anew each time.

Each start reads an index of the records. `--healthy` keeps the worker between epochs.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

RECORDS, FEATURES, BATCH = 1536, 1024, 96


def write_records(folder):
    """Fixed-size records in one file, and where each of them starts in another."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(256, (RECORDS, FEATURES), generator=generator, dtype=torch.uint8)
    (folder / "records.bin").write_bytes(values.numpy().tobytes())
    index = [{"name": f"{n:08}", "start": n * FEATURES, "tags": [n % 7] * 20} for n in range(60000)]
    (folder / "index.json").write_text(json.dumps(index))


def open_index(_worker):
    """What each worker does first."""
    dataset = get_worker_info().dataset
    dataset.index = json.loads((dataset.folder / "index.json").read_text())


class Records(Dataset):
    def __init__(self, folder):
        self.folder = folder
        self.index = []

    def __len__(self):
        return RECORDS

    def __getitem__(self, number):
        with (self.folder / "records.bin").open("rb") as file:
            file.seek(self.index[number]["start"])
            values = bytearray(file.read(FEATURES))
        return torch.frombuffer(values, dtype=torch.uint8), number % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    model = nn.Sequential(
        nn.Unflatten(1, (1, 32, 32)),
        nn.Conv2d(1, 64, 5), nn.ReLU(),
        nn.Conv2d(64, 64, 5, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 12 * 12, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

    with tempfile.TemporaryDirectory() as folder:
        write_records(Path(folder))
        loader = DataLoader(
            Records(Path(folder)),
            batch_size=BATCH,
            num_workers=1,
            worker_init_fn=open_index,
            persistent_workers=args.healthy,
        )
        step = 0
        while step < args.steps:
            for values, labels in loader:
                if step == 10:
                    start = time.perf_counter()
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = nn.functional.cross_entropy(model(values.float() / 255), labels)
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
