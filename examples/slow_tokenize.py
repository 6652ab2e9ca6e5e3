"""Trains a small language model on text that is tokenized anew whenever the loader asks for it.

    python examples/slow_tokenize.py --epochs 4

Byte pair encoding in plain Python, learned at the start from the text itself. Nothing waits: every
second is computing. `hotloop doctor -- python examples/slow_tokenize.py` says what to do about it.
"""

import argparse
import sysconfig
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

MERGES, CONTEXT, LINES = 128, 128, 620


def read_documents(number):
    """Pieces of the standard library's sources."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for start in range(0, len(lines) - LINES, LINES):
            found.append("\n".join(lines[start : start + LINES]))
    return found[:: max(len(found) // number, 1)][:number]


def merged(symbols, pair, symbol):
    """`symbols` with every `pair` in a row replaced by `symbol`."""
    made, at = [], 0
    while at < len(symbols):
        if at + 1 < len(symbols) and (symbols[at], symbols[at + 1]) == pair:
            made.append(symbol)
            at += 2
        else:
            made.append(symbols[at])
            at += 1
    return made


class Tokenizer:
    """The textbook algorithm: the merge learned first is made first, everywhere in the text."""

    def __init__(self, text):
        symbols = list(text.encode())
        self.merges = {}
        for symbol in range(256, 256 + MERGES):
            pairs = Counter(pairwise(symbols))
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.merges[best] = symbol
            symbols = merged(symbols, best, symbol)

    def encode(self, text):
        symbols = list(text.encode())
        while True:
            pairs = self.merges.keys() & set(pairwise(symbols))
            if not pairs:
                return symbols
            first = min(pairs, key=self.merges.__getitem__)
            symbols = merged(symbols, first, self.merges[first])


class Documents(Dataset):
    def __init__(self, texts, tokenizer):
        self.texts = texts
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        ids = self.tokenizer.encode(self.texts[index])
        middle = (len(ids) - CONTEXT) // 2
        ids = torch.tensor(ids[middle : middle + CONTEXT + 1])
        return ids[:-1], ids[1:]


class LanguageModel(nn.Module):
    def __init__(self, width=256, layers=3, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(256 + MERGES, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return F.linear(self.norm(x), self.tokens.weight)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # a small model: more threads wait for each other
    texts = read_documents(args.documents)
    tokenizer = Tokenizer("\n".join(text[:300] for text in texts))
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(Documents(texts, tokenizer), batch_size=1, shuffle=True)

    step = 0
    for _ in range(args.epochs):
        for tokens, targets in loader:
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            step += 1


if __name__ == "__main__":
    main()
