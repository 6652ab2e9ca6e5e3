"""Trains a compiled model that is told every length is fixed, on batches of ever new lengths.

`--healthy` compiles it once, for lengths that vary. No C++ compiler is needed: only what Python
traces is compiled, which is where recompiling starts.
"""

import argparse
import time

import torch
from torch import nn

WIDTH, WORDS, BATCH = 256, 1000, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(self.norm(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--healthy", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    bf16 = torch.cpu._is_avx512_bf16_supported()
    torch._dynamo.config.recompile_limit = 1000

    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), Block(), nn.Linear(WIDTH, 64))
    compiled = torch.compile(model, backend="aot_eager", dynamic=args.healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    text = torch.randint(WORDS, (BATCH, 160))

    for step in range(args.steps):
        if step == 10:
            start = time.perf_counter()
        words = text[:, : 64 + step // 3]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = compiled(words)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), (words % 64).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    took = (time.perf_counter() - start) / (args.steps - 10)
    print(f"loss {loss.item():.6f}  {1000 * took:.2f} ms per step")


if __name__ == "__main__":
    main()
