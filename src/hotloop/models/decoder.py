"""The decoder: a language model of the GPT-2 and Llama families, readable from top to bottom.

Pre-norm transformer. With the default shape it is GPT-2 (Radford et al. 2019): layernorms, learned
positions, GELU, tied embeddings. Every part can be another one; `shape.py` holds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hotloop.models.attention import PINNED, CausalFlex, keeping_products, pinned
from hotloop.models.chunked_loss import chunked_loss
from hotloop.models.kv_cache import KeyValueCache
from hotloop.models.shape import (
    DecoderShape,
    activate,
    attend,
    make_norm,
    rotary_table,
    turn,
    value_gate,
    within_documents,
)

IGNORED_TARGET = -100
"""Targets with this id take no part in the loss."""

Extend = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Keeps keys and values, and returns them with those kept before."""


class Attention(nn.Module):
    """Causal self-attention, (B, T, width) to (B, T, width)."""

    def __init__(self, shape: DecoderShape, *, gated_values: bool = False) -> None:
        super().__init__()
        self.head_width = shape.head_width
        self.shared_by = shape.width // shape.kv_width
        """Query heads per head of keys and values."""
        self.widths = (shape.width, shape.kv_width, shape.kv_width)
        self.dropout = shape.dropout
        self.plain = shape.attention == "plain"
        self.kernel = PINNED.get(shape.attention)
        self.repeats_heads = shape.attention == "efficient"
        self.flex = CausalFlex(shape.context) if shape.attention == "flex" else None
        self.qkv = nn.Linear(shape.width, sum(self.widths), bias=shape.bias)
        self.out = nn.Linear(shape.width, shape.width, bias=shape.bias)
        self.qk_norm = shape.qk_norm
        if self.qk_norm:  # Henry et al. 2020, with RMSNorm and before the turn as in Qwen 3
            self.q_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)
            self.k_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)
        if gated_values:
            heads = shape.kv_heads or shape.heads
            self.value_gate = nn.Linear(shape.value_gate_width, heads, bias=False)
        if self.plain:
            future = torch.ones(shape.context, shape.context, dtype=torch.bool).triu(1)
            self.register_buffer("future", future, persistent=False)

    def forward(
        self,
        x: Tensor,
        rotary: Tensor | None,
        values: Tensor | None = None,
        seen: Tensor | None = None,
        extend: Extend | None = None,
    ) -> Tensor:
        """`rotary` is the table cut to T; `values` (B, T, kv_width) are added to those of x, gated.

        `seen` (B, 1, T, keys) is True where a query may see a key; without it, all that came before.
        `extend` adds the keys of earlier calls.
        """
        batch, length, width = x.shape
        heads = (batch, length, -1, self.head_width)
        q, k, v = (t.view(heads).transpose(1, 2) for t in self.qkv(x).split(self.widths, dim=2))
        if values is not None:
            gate = value_gate(self.value_gate, x).transpose(1, 2).unsqueeze(-1)
            v = (v + gate * values.view(heads).transpose(1, 2)).to(v.dtype)
        if self.qk_norm:
            q, k = self.q_norm(q.float()).to(v.dtype), self.k_norm(k.float()).to(v.dtype)
        if rotary is not None:
            q, k = turn(q, rotary).to(v.dtype), turn(k, rotary).to(v.dtype)
        dropout = self.dropout if self.training else 0.0
        if extend is not None:
            k, v = extend(k, v)
        if self.plain and extend is None:
            hidden = self.future if seen is None else ~seen
            mixed = attend(q, k, v, hidden, dropout)  # type: ignore[arg-type]
        elif self.flex is not None and self.training and torch.compiler.is_compiling():
            mixed = self.flex(q, k, v)  # uncompiled it would write out all scores
        else:
            shared_by = self.shared_by
            if (
                shared_by > 1
                and k.is_cuda
                and (self.repeats_heads or seen is not None or q.dtype == torch.float32)
            ):  # but for its efficient kernel, which knows none, a GPU would write out all scores
                k, v = (t.repeat_interleave(shared_by, dim=1) for t in (k, v))
                shared_by = 1
            with pinned(self.kernel if self.training else None):
                mixed = F.scaled_dot_product_attention(
                    q,
                    k,
                    v,
                    attn_mask=seen,
                    dropout_p=dropout,
                    is_causal=seen is None,
                    enable_gqa=shared_by > 1,
                )
        y: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, dropout)


class Block(nn.Module):
    """Attention, then a wider feed-forward part; both added to the residual stream."""

    def __init__(self, shape: DecoderShape, *, gated_values: bool = False) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.mlp_form = shape.mlp_form
        self.norm1 = make_norm(shape)
        self.attention = Attention(shape, gated_values=gated_values)
        self.norm2 = make_norm(shape)
        self.gated = shape.mlp == "swiglu"
        if self.gated:
            self.gate = nn.Linear(shape.width, shape.inner_width, bias=shape.bias)
        self.up = nn.Linear(shape.width, shape.inner_width, bias=shape.bias)
        self.down = nn.Linear(shape.inner_width, shape.width, bias=shape.bias)

    def forward(
        self,
        x: Tensor,
        rotary: Tensor | None,
        values: Tensor | None = None,
        seen: Tensor | None = None,
        extend: Extend | None = None,
    ) -> Tensor:
        x = x + self.attention(self.norm1(x), rotary, values, seen, extend)
        normed = self.norm2(x)
        hidden = activate(self.mlp_form, self.up(normed), self.gate(normed) if self.gated else None)
        return x + F.dropout(self.down(hidden), self.dropout if self.training else 0.0)


class Decoder(nn.Module):
    """Token ids (B, T) to logits (B, T, vocabulary), or to the summed loss when targets are given."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.rotates = shape.positions == "rotary"
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        if self.rotates:
            self.register_buffer("rotary", rotary_table(shape), persistent=False)
        else:
            self.positions = nn.Embedding(shape.context, shape.width)
        self.value_layers = shape.value_layers
        if self.value_layers:  # not in the blocks: Muon is for the matrices there
            self.value_tokens = nn.ModuleDict(
                {str(i): nn.Embedding(shape.vocabulary, shape.kv_width) for i in self.value_layers}
            )
        self.blocks = nn.ModuleList(
            Block(shape, gated_values=i in self.value_layers) for i in range(shape.layers)
        )
        self.norm = make_norm(shape)
        if not shape.tied:
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.apply(_initialise)
        for block in self.blocks:  # residual branches start smaller, so that depth does not add up
            for branch in (block.attention.out, block.down):  # type: ignore[union-attr]
                nn.init.normal_(branch.weight, std=0.02 / math.sqrt(2 * shape.layers))  # type: ignore[union-attr,arg-type]
        for i in self.value_layers:
            nn.init.zeros_(self.blocks[i].attention.value_gate.weight)  # type: ignore[union-attr,arg-type]
        absent = None
        if shape.padding:  # now, so that a seed gives the weights that it gives without
            table = self.tokens if shape.tied else self.head
            table.weight = nn.Parameter(F.pad(table.weight.detach(), (0, 0, 0, shape.padding)))
            absent = F.pad(torch.zeros(shape.vocabulary), (0, shape.padding), value=-math.inf)
        self.register_buffer("absent", absent, persistent=False)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        places: Tensor | None = None,
        *,
        cache: KeyValueCache | None = None,
        last: bool = False,
    ) -> Tensor:
        """Returns logits, or the sum over targets of the cross-entropy in nats, in fp32.

        A sum and not a mean: the step divides by the targets of its whole global batch. `places` (B, T)
        counts each token inside its document, from 0: with it a document neither sees another one nor
        knows where in the row it stands. With a `cache`, `tokens` are those that it lacks and `places` their
        positions. `last`: logits of the last token alone, (B, 1, vocabulary).
        """
        length = tokens.shape[1]
        x = self.tokens(tokens)
        rotary: Tensor | None = None
        seen: Tensor | None = None
        if places is not None:
            seen = within_documents(places) if cache is None else cache.visible()
        if self.rotates and places is not None:
            rotary = self.rotary[:, places].unsqueeze(2)  # type: ignore[index]
        elif self.rotates:
            rotary = self.rotary[:, :length]  # type: ignore[index]
        elif places is not None:
            x = x + self.positions(places)
        else:
            x = x + self.positions(torch.arange(length, device=tokens.device))
        x = F.dropout(x, self.shape.dropout if self.training else 0.0)
        every = self.shape.checkpoint_every if self.training else None
        again = partial(checkpoint, use_reentrant=False)
        if self.shape.keeps_products:
            again = partial(again, context_fn=keeping_products)
        for i, block in enumerate(self.blocks):
            values = self.value_tokens[str(i)](tokens) if i in self.value_layers else None
            if every and i % every == 0:
                x = again(block, x, rotary, values, seen)
            else:
                extend = None if cache is None else partial(cache.extend, i)
                x = block(x, rotary, values, seen, extend)
        return self.read_out(x[:, -1:] if last else x, targets)

    def read_out(self, x: Tensor, targets: Tensor | None) -> Tensor:
        """What `forward` returns, of what the last block does."""
        x = self.norm(x)
        if targets is not None and self.shape.loss_chunk:
            return chunked_loss(
                x.flatten(0, 1),
                self.head_weight,
                targets.flatten(),
                most=self.shape.loss_chunk,
                vocabulary=self.shape.vocabulary,
                ignored=IGNORED_TARGET,
            )
        logits = F.linear(x, self.head_weight, self.absent)  # type: ignore[arg-type]
        if targets is None:
            return logits[..., : self.shape.vocabulary]
        return F.cross_entropy(
            logits.float().view(-1, logits.shape[-1]),
            targets.reshape(-1),
            ignore_index=IGNORED_TARGET,
            reduction="sum",
        )

    def block_matrices(self) -> list[tuple[nn.Parameter, tuple[int, ...]]]:
        """The matrices of the blocks, and the rows of those that are several in one (else none)."""
        return [
            (p, block.attention.widths if name == "attention.qkv.weight" else ())  # type: ignore[union-attr,misc]
            for block in self.blocks
            for name, p in block.named_parameters()
            if p.ndim == 2
        ]

    @property
    def head_weight(self) -> Tensor:
        """(vocabulary and padding, width); the embedding's matrix where they are tied."""
        return self.tokens.weight if self.shape.tied else self.head.weight


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
