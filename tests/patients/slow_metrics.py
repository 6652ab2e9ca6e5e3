"""Trains a tagger and counts, after every step, which tags were right, tag by tag in Python.

`--healthy` counts on tensors.
"""

import argparse
import time
from collections import Counter

import torch
from torch import nn

WORDS, TAGS, WIDTH, BATCH, LENGTH = 1000, 9, 256, 64, 128
NAMES = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]


def count_by_name(predicted, wanted, counts):
    for predicted_row, wanted_row in zip(predicted.tolist(), wanted.tolist()):
        for one, other in zip(predicted_row, wanted_row):
            guess, truth = NAMES[one], NAMES[other]
            guess_kind, kind = guess.split("-")[-1], truth.split("-")[-1]
            counts[kind, "wanted"] += 1
            counts[guess_kind, "guessed"] += 1
            if guess_kind == kind:
                counts[kind, "right"] += 1
            if guess == truth:
                counts[truth, "exact"] += 1


def count_by_tensor(predicted, wanted, matrix):
    matrix += torch.bincount((wanted * TAGS + predicted).flatten(), minlength=TAGS * TAGS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, TAGS),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    words = torch.randint(WORDS, (16, BATCH, LENGTH))
    counts, matrix = Counter(), torch.zeros(TAGS * TAGS, dtype=torch.long)

    for step in range(args.steps):
        if step == 10:
            start = time.perf_counter()
        batch = words[step % 16]
        tags = batch % TAGS
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(batch)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.healthy:
            count_by_tensor(logits.argmax(-1), tags, matrix)
        else:
            count_by_name(logits.argmax(-1), tags, counts)
    took = (time.perf_counter() - start) / (args.steps - 10)
    right = int(matrix.view(TAGS, TAGS).diagonal().sum()) if args.healthy else sum(
        number for (_, what), number in counts.items() if what == "exact"
    )  # fmt: skip
    print(f"right: {right}")
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
