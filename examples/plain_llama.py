"""A small Llama trained on prepared tokens, as one writes it first: fp32, eager, torch's defaults.

    python examples/plain_llama.py --data DIR --steps 200

Rotary positions, RMSNorm, SwiGLU, grouped-query attention, untied head. The data, the schedule and
the arguments are those of `plain_gpt.py`, beside this file.
"""

import math

import plain_gpt
import torch
import torch.nn.functional as F
from torch import nn


def rotary(head_width, context):
    """Cosines and sines (context, head_width), both halves alike."""
    frequencies = 10000.0 ** -(torch.arange(0, head_width, 2).float() / head_width)
    angles = torch.outer(torch.arange(context).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def turn(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-right, left), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.head_width = width // heads
        self.widths = (width, kv_heads * self.head_width, kv_heads * self.head_width)
        self.qkv = nn.Linear(width, sum(self.widths), bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, -1, self.head_width).transpose(1, 2)
            for t in self.qkv(x).split(self.widths, dim=2)
        )
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, kv_heads)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    def __init__(self, vocabulary, context, layers, width, heads, kv_heads, hidden):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        cos, sin = rotary(width // heads, context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self.initialise)
        for block in self.blocks:
            nn.init.normal_(block.attention.out.weight, std=0.02 / math.sqrt(2 * layers))
            nn.init.normal_(block.down.weight, std=0.02 / math.sqrt(2 * layers))

    @staticmethod
    def initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens)
        length = tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        return self.head(self.norm(x))


def add_arguments(parser):
    parser.add_argument("--kv-heads", type=int, help="heads of keys and values (default: --heads)")
    parser.add_argument("--hidden", type=int, help="inner width (default: 8/3 of the width)")


def make_model(vocabulary, args):
    hidden = args.hidden or -(-8 * args.width // (3 * 64)) * 64
    kv_heads = args.kv_heads or args.heads
    return Llama(vocabulary, args.context, args.layers, args.width, args.heads, kv_heads, hidden)


def main():
    parser = plain_gpt.arguments(__doc__)
    add_arguments(parser)
    plain_gpt.train(parser.parse_args(), make_model)


if __name__ == "__main__":
    main()
