"""Fine-tunes a small language model on text in an object store, as one writes it first.

    python examples/slow_finetune.py --steps 120

Batch size 1; each sample is fetched over HTTP and tokenized when the loader asks for it. Without
--store it starts `text_server.py` beside it, which answers as slowly as a store far away.
`hotloop doctor -- python examples/slow_finetune.py` says what holds it back.
"""

import argparse
import json
import re
import subprocess
import sys
import urllib.request
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, CONTEXT = 4096, 128


class StoredText(Dataset):
    """Documents of an object store; each has its text and a description of its own."""

    def __init__(self, store, documents):
        self.store = store
        self.documents = documents

    def __len__(self):
        return self.documents

    def fetch(self, name):
        with urllib.request.urlopen(f"{self.store}/documents/{name}", timeout=60) as answer:
            return answer.read().decode()

    def __getitem__(self, index):
        about = json.loads(self.fetch(f"{index}.json"))
        text = f"# {about['file']}, line {about['line']}\n" + self.fetch(f"{index}.txt")
        ids = tokenize(text)[: CONTEXT + 1]
        ids += [0] * (CONTEXT + 1 - len(ids))
        ids = torch.tensor(ids)
        return ids[:-1], ids[1:]


def tokenize(text):
    """Words, numbers, runs of blanks and single signs, each by a hash of its bytes."""
    pieces = re.findall(r"[A-Za-z_]+|[0-9]+| +|[^A-Za-z_0-9 ]", text)
    return [1 + zlib.crc32(piece.encode()) % (VOCABULARY - 1) for piece in pieces]


class LanguageModel(nn.Module):
    def __init__(self, width=192, layers=3, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
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


def start_store(documents, latency):
    """The server beside this script, which ends when this process does; its address."""
    command = [sys.executable, str(Path(__file__).with_name("text_server.py"))]
    command += ["--documents", str(documents), "--latency", str(latency)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return server, server.stdout.readline().strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", help="address of the store (default: start one)")
    parser.add_argument("--latency", type=float, default=0.11, help="of the store that is started")
    parser.add_argument("--documents", type=int, default=400)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    server = None
    if not args.store:
        server, args.store = start_store(args.documents, args.latency)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(StoredText(args.store, args.documents), batch_size=1, shuffle=True)

    step = 0
    while step < args.steps:
        for tokens, targets in loader:
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            step += 1
            if step == args.steps:
                break
    if server is not None:
        server.stdin.close()
        server.wait()


if __name__ == "__main__":
    main()
