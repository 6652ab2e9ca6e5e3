"""A small GPT trained on prepared tokens, as one writes it first: fp32, eager, torch's defaults.

    python examples/plain_gpt.py --data DIR --steps 200

DIR holds `train-*.bin` (token ids, little-endian, their type in `manifest.json`). Nothing but torch
and numpy is used. This is the baseline that other ways of training the same model are held against.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TokenWindows(Dataset):
    """Windows of `context` tokens and, as targets, the same shifted by one."""

    def __init__(self, directory, context):
        manifest = json.loads((directory / "manifest.json").read_text())
        self.vocabulary = manifest["vocabulary_size"]
        files = sorted(directory.glob("train-*.bin"))
        self.tokens = np.concatenate(
            [np.memmap(f, dtype=manifest["id_type"], mode="r") for f in files]
        )
        self.context = context

    def __len__(self):
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, index):
        start = index * self.context
        window = torch.from_numpy(self.tokens[start : start + self.context + 1].astype(np.int64))
        return window[:-1], window[1:]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary, context, layers, width, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.apply(self.initialise)
        for block in self.blocks:
            nn.init.normal_(block.attention.out.weight, std=0.02 / math.sqrt(2 * layers))
            nn.init.normal_(block.down.weight, std=0.02 / math.sqrt(2 * layers))

    @staticmethod
    def initialise(module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def learning_rate(step, args):
    """Linear warmup, then cosine down to a tenth at the last step."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    last = args.schedule_steps - 1
    done = min(1.0, (step - args.warmup) / (last - args.warmup)) if last > args.warmup else 1.0
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def arguments(description):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="a prepared directory")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--schedule-steps", type=int, help="steps the schedule is for (default: --steps)"
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, help="ids of the model (default: the data's)")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--order", type=Path, help="windows to train on, in this order (.npy)")
    parser.add_argument("--save", type=Path, help="where to save the weights at the end")
    return parser


def make_loader(windows, args):
    if args.order:
        return DataLoader(windows, args.batch, sampler=np.load(args.order).tolist(), drop_last=True)
    return DataLoader(windows, args.batch, shuffle=True, drop_last=True)


def make_model(vocabulary, args):
    return GPT(vocabulary, args.context, args.layers, args.width, args.heads)


def make_optimizer(model, args, **options):
    """Weight decay for matrices and embeddings, not for norms and biases."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, **options)


def train(args, make_model):
    args.schedule_steps = args.schedule_steps or args.steps

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    windows = TokenWindows(args.data, args.context)
    model = make_model(args.vocabulary or windows.vocabulary, args).to(device)
    optimizer = make_optimizer(model, args)
    loader = make_loader(windows, args)

    step = 0
    while step < args.steps:
        for tokens, targets in loader:
            tokens, targets = tokens.to(device), targets.to(device)
            logits = model(tokens)
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            step += 1
            if step == args.steps:
                break
    if args.save:
        torch.save(model.state_dict(), args.save)


def main():
    train(arguments(__doc__).parse_args(), make_model)


if __name__ == "__main__":
    main()
