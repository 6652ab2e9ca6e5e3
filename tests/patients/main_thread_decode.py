"""Trains on a file of compressed recordings that the training loop itself reads and decodes.

There is no loader: a generator decodes the next batch while the model waits.
`--healthy` decodes the file once and slices the tensor that comes of it.
"""

import argparse
import base64
import itertools
import json
import tempfile
import time
import zlib
from pathlib import Path

import torch
from torch import nn

RECORDINGS, SAMPLES, BATCH = 512, 8192, 64


def write_recordings(path):
    generator = torch.Generator().manual_seed(1)
    times = torch.arange(SAMPLES)
    with path.open("w") as file:
        for _ in range(RECORDINGS):
            label = int(torch.randint(8, (1,), generator=generator))
            wave = (torch.sin(times * (0.01 * (label + 1))) * 90).to(torch.int8)
            wave += torch.randint(16, (SAMPLES,), generator=generator, dtype=torch.int8)
            packed = base64.b64encode(zlib.compress(wave.numpy().tobytes())).decode()
            file.write(json.dumps({"label": label, "wave": packed}) + "\n")


def decode(line):
    record = json.loads(line)
    wave = bytearray(zlib.decompress(base64.b64decode(record["wave"])))
    return torch.frombuffer(wave, dtype=torch.int8).float() / 128, record["label"]


def decoded_batches(path):
    while True:
        with path.open() as file:
            while lines := list(itertools.islice(file, BATCH)):
                waves, labels = zip(*map(decode, lines))
                yield torch.stack(waves), torch.tensor(labels)


def sliced_batches(path):
    with path.open() as file:
        waves, labels = zip(*map(decode, file))
    waves, labels = torch.stack(waves), torch.tensor(labels)
    for start in itertools.cycle(range(0, RECORDINGS, BATCH)):
        yield waves[start : start + BATCH], labels[start : start + BATCH]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    model = nn.Sequential(
        nn.Unflatten(1, (1, SAMPLES)),
        nn.Conv1d(1, 16, 64, stride=16), nn.ReLU(),
        nn.Conv1d(16, 32, 32, stride=4), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(8),
    )  # fmt: skip
    model(torch.zeros(1, SAMPLES))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recordings.jsonl"
        write_recordings(path)
        batches = sliced_batches(path) if args.healthy else decoded_batches(path)
        for step in range(args.steps):
            if step == 10:
                start = time.perf_counter()
            waves, labels = next(batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = nn.functional.cross_entropy(model(waves), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        took = (time.perf_counter() - start) / (args.steps - 10)
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
