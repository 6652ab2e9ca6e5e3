"""Trains on sentences of 40 to 48 tokens, each padded to the 128 that the model could take.

`--healthy` pads each batch to its own longest sentence.
"""

import argparse
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

WIDTH, HIDDEN, WORDS, LIMIT, BATCH, SENTENCES, PAD = 256, 640, 1000, 128, 24, 480, 0


def sentences():
    """Sorted by length, as a sampler that groups by length would serve them."""
    draw = random.Random(1)
    lengths = sorted(draw.randint(40, 48) for _ in range(SENTENCES))
    return [torch.tensor([draw.randrange(1, WORDS) for _ in range(n)]) for n in lengths]


def collate(batch, to_length):
    length = to_length or max(len(each) for each in batch)
    ids = torch.full((len(batch), length), PAD)
    for row, each in enumerate(batch):
        ids[row, : len(each)] = each
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=PAD)
        self.hidden = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
            nn.Linear(HIDDEN, WIDTH),
        )  # fmt: skip
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        mean = (x * attention_mask.unsqueeze(-1)).sum(1) / attention_mask.sum(1, keepdim=True)
        return self.head(x + self.hidden(x + mean.unsqueeze(1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    to_length = None if args.healthy else LIMIT
    loader = DataLoader(
        sentences(), batch_size=BATCH, collate_fn=lambda batch: collate(batch, to_length)
    )
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)

    step = 0
    while step < args.steps:
        for batch in loader:
            if step == 10:
                start = time.perf_counter()
            tags = (batch["input_ids"] % 64).masked_fill(batch["attention_mask"] == 0, -100)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits = model(**batch)
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
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
