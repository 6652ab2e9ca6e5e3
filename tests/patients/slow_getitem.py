"""Trains a classifier on images stored as JSON lines, each decoded when the loader asks for it.

`--healthy` decodes every image once, before training.
"""

import argparse
import base64
import json
import time
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

IMAGES, SIDE, BATCH = 512, 48, 64


def stored_images():
    """One JSON line per image, as a label tool exports them."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(IMAGES):
        label = int(torch.randint(10, (1,), generator=generator))
        noise = torch.randint(24, (3, SIDE, SIDE), generator=generator)
        rows = (noise + 20 * label).to(torch.uint8)
        rows[..., 1:] -= rows[..., :-1].clone()  # differences pack better, as in a PNG
        pixels = zlib.compress(rows.numpy().tobytes())
        yield json.dumps({"label": label, "pixels": base64.b64encode(pixels).decode()})


def decode(line):
    record = json.loads(line)
    pixels = bytearray(zlib.decompress(base64.b64decode(record["pixels"])))
    rows = torch.frombuffer(pixels, dtype=torch.uint8).view(3, SIDE, SIDE)
    image = rows.cumsum(-1, dtype=torch.uint8).float() / 255
    return (image - image.mean()) / image.std(), record["label"]


class Images(Dataset):
    def __init__(self, lines, decode_first):
        self.decoded = decode_first
        self.items = [decode(line) for line in lines] if decode_first else list(lines)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index] if self.decoded else decode(self.items[index])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    loader = DataLoader(Images(stored_images(), args.healthy), batch_size=BATCH, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 48, 5, stride=2), nn.ReLU(),
        nn.Conv2d(48, 96, 5, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(96 * 9 * 9, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    step = 0
    while step < args.steps:
        for images, labels in loader:
            if step == 10:
                start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = nn.functional.cross_entropy(model(images), labels)
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
