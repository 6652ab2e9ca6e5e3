"""The decoder: a GPT-2 style language model, readable from top to bottom.

Pre-norm transformer with learned positions, GELU and tied embeddings, after Radford et al. 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED_TARGET = -100
"""Targets with this id take no part in the loss."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    vocabulary: int
    context: int
    layers: int
    width: int
    heads: int
    dropout: float = 0.0
    attention: str = "sdpa"
    """`sdpa` or `plain`; the same mathematics, summed in another order."""


class Attention(nn.Module):
    """Causal self-attention, (B, T, width) to (B, T, width)."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.head_width = shape.width // shape.heads
        self.dropout = shape.dropout
        self.plain = shape.attention == "plain"
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        if self.plain:
            future = torch.ones(shape.context, shape.context, dtype=torch.bool).triu(1)
            self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.heads, self.head_width)
        q, k, v = (t.view(heads).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
        dropout = self.dropout if self.training else 0.0
        if self.plain:
            # Written out, for the compiler to fuse mask, scale, softmax and casts into one pass.
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.head_width))
            scores = scores.masked_fill(self.future[:length, :length], float("-inf"))  # type: ignore[index]
            weights = F.softmax(scores.float(), dim=-1).to(v.dtype)
            mixed = F.dropout(weights, dropout) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, dropout)


class Block(nn.Module):
    """Attention, then a feed-forward four times as wide; both added to the residual stream."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + F.dropout(self.down(hidden), self.dropout if self.training else 0.0)


class Decoder(nn.Module):
    """Token ids (B, T) to logits (B, T, vocabulary), or to the summed loss when targets are given."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.apply(_initialise)
        for block in self.blocks:  # residual branches start smaller, so that depth does not add up
            for branch in (block.attention.out, block.down):  # type: ignore[union-attr]
                nn.init.normal_(branch.weight, std=0.02 / math.sqrt(2 * shape.layers))  # type: ignore[union-attr,arg-type]

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Returns logits, or the sum over targets of the cross-entropy in nats, in fp32.

        A sum and not a mean: the step divides by the targets of its whole global batch.
        """
        place = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(place)
        x = F.dropout(x, self.shape.dropout if self.training else 0.0)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        if targets is None:
            return logits
        return F.cross_entropy(
            logits.float().view(-1, logits.shape[-1]),
            targets.reshape(-1),
            ignore_index=IGNORED_TARGET,
            reduction="sum",
        )


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def flops_per_token(shape: DecoderShape) -> float:
    """Training FLOPs per token by the PaLM convention: 6 N + 12 layers width context.

    N counts the parameters used in matrix products (blocks and head); Chowdhery et al. 2022, app. B.
    """
    block = 12 * shape.width**2
    matmul = shape.layers * block + shape.vocabulary * shape.width
    return 6.0 * matmul + 12.0 * shape.layers * shape.width * shape.context
