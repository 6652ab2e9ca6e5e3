"""Trains a causal self-attention block whose attention is written out: scores, mask, softmax, sum.

`--healthy` calls torch's scaled_dot_product_attention.
"""

import argparse
import math
import time

import torch
from torch import nn

WIDTH, HEADS, LENGTH, BATCH, WORDS = 256, 4, 512, 2, 512


class Attention(nn.Module):
    def __init__(self, healthy):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)).bool())
        self.healthy = healthy

    def forward(self, x):
        batch, length, _ = x.shape
        split = self.project(x).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4).float()
        with torch.autocast("cpu", enabled=False):  # scores stay exact
            if self.healthy:
                mixed = nn.functional.scaled_dot_product_attention(
                    query, key, value, is_causal=True
                )
            else:
                scores = query @ key.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
                scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
                mixed = torch.softmax(scores, dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Model(nn.Module):
    def __init__(self, healthy):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(healthy)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.embed(words)
        return self.head(x + self.attention(self.norm(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()

    model = Model(args.healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    words = torch.randint(WORDS, (16, BATCH, LENGTH + 1))

    for step in range(args.steps):
        if step == 10:
            start = time.perf_counter()
        batch = words[step % 16]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    took = (time.perf_counter() - start) / (args.steps - 10)
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
