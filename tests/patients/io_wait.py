"""Trains on files that lie on a slow share: each is opened and read when it is needed.

The files are real; what the network adds to opening one is a wait of 1 ms each.
`--healthy` reads the same files from the local disk, without that wait.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILES, FEATURES, BATCH = 128, 4096, 16
NETWORK_S = 0.001


def write_files(folder):
    generator = torch.Generator().manual_seed(1)
    for number in range(FILES):
        values = torch.randint(256, (FEATURES,), generator=generator, dtype=torch.uint8)
        (folder / f"{number:05}.raw").write_bytes(values.numpy().tobytes())


class SharedFolder(Dataset):
    def __init__(self, folder, latency_s):
        self.paths = sorted(folder.glob("*.raw"))
        self.latency_s = latency_s

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        if self.latency_s:
            time.sleep(self.latency_s)
        values = torch.frombuffer(bytearray(self.paths[index].read_bytes()), dtype=torch.uint8)
        return values.float() / 255, index % 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    model = nn.Sequential(
        nn.Unflatten(1, (1, 64, 64)),
        nn.Conv2d(1, 64, 5, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 5, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 5), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 9 * 9, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)

    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        dataset = SharedFolder(Path(folder), 0 if args.healthy else NETWORK_S)
        loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
        step = 0
        while step < args.steps:
            for values, labels in loader:
                if step == 10:
                    start = time.perf_counter()
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = nn.functional.cross_entropy(model(values), labels)
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
