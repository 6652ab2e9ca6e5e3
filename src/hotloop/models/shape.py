"""What a decoder is made of: its shape, how many weights and how much arithmetic that is, and the parts of a block."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotloop.core.judgement import ModelFlops

GELU_SLOPE = 2 * math.sqrt(2 / math.pi)
SHORTEST_BLOCK, MOST_BLOCKS = 128, 4
"""Blocks of queries in attention that is written out: shorter products are slower, more blocks longer to compile."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Everything that a decoder is built from; the defaults are GPT-2's parts."""

    vocabulary: int
    """Ids; the output matrix may have more rows."""
    context: int
    layers: int
    width: int
    heads: int
    dropout: float = 0.0
    attention: str = "sdpa"
    """As in `train.attention`; the same mathematics, summed in another order."""
    norm: str = "layernorm"
    norm_epsilon: float = 1e-5
    positions: str = "learned"
    rotary_theta: float = 10000.0
    mlp: str = "gelu"
    gelu: str = "tanh"
    """`tanh` or `sigmoid`: how GELU's curve is written; the same curve."""
    loss_chunk: int | None = None
    """Most tokens whose logits a training holds at a time; `None`: those of the whole microbatch."""
    checkpoint_every: int | None = None
    """Of every so many blocks the first is computed again in the backward; `None`: none is."""
    keeps_products: bool = False
    """Of these what products and attention made is kept."""
    hidden: int | None = None
    """Inner width of the feed-forward part; `None` is 4 x width."""
    kv_heads: int | None = None
    """Heads of keys and values; `None` is `heads`."""
    qk_norm: bool = False
    value_embeddings: bool = False
    """Every second layer, the last included, adds an embedding of the token to its values."""
    bias: bool = True
    tied: bool = True
    pad_vocabulary_to: int = 1

    @property
    def padding(self) -> int:
        """Rows of the output matrix that are no id's."""
        return -self.vocabulary % self.pad_vocabulary_to

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token, and of all values."""
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def inner_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def mlp_form(self) -> str:
        """`mlp`, or `gelu_sigmoid` where GELU is written so."""
        return "gelu_sigmoid" if (self.mlp, self.gelu) == ("gelu", "sigmoid") else self.mlp

    @property
    def value_layers(self) -> tuple[int, ...]:
        """The layers with value embeddings: every second one, counted from the last."""
        return tuple(range((self.layers - 1) % 2, self.layers, 2)) if self.value_embeddings else ()

    @property
    def value_gate_width(self) -> int:
        """Channels of the residual stream that the gate of a value embedding reads."""
        return min(32, self.width)


def flops_per_token(shape: DecoderShape) -> float:
    """Training FLOPs per token by the PaLM convention: 6 N + 12 layers width context.

    N counts the weights used in matrix products (blocks and head); Chowdhery et al. 2022, app. B.
    Keys and values shared by several query heads save weights, not scores. Embeddings, those of the
    values too, are looked up and not multiplied; the gates of the latter are.
    """
    attention = 2 * shape.width * (shape.width + shape.kv_width)
    feed_forward = (3 if shape.mlp == "swiglu" else 2) * shape.width * shape.inner_width
    gates = len(shape.value_layers) * shape.value_gate_width * (shape.kv_heads or shape.heads)
    matmul = shape.layers * (attention + feed_forward) + gates + shape.vocabulary * shape.width
    return 6.0 * matmul + 12.0 * shape.layers * shape.width * shape.context


def model_flops(shape: DecoderShape) -> ModelFlops:
    """The same in its two parts: what does not grow with the context is products with weights."""
    matmul = flops_per_token(replace(shape, context=0))
    return ModelFlops(matmul=matmul, attention=flops_per_token(shape) - matmul)


def num_weights(shape: DecoderShape) -> int:
    """Weights of a decoder of this shape, counted without building it."""
    width, inner, bias = shape.width, shape.inner_width, int(shape.bias)
    norm = width * (1 + (bias if shape.norm == "layernorm" else 0))
    qkv = width + 2 * shape.kv_width
    attention = (width + bias) * qkv + (width + bias) * width
    if shape.qk_norm:
        attention += 2 * shape.head_width
    wide = 2 if shape.mlp == "swiglu" else 1
    feed_forward = wide * (width + bias) * inner + (inner + bias) * width
    gates = shape.value_gate_width * (shape.kv_heads or shape.heads)
    values = len(shape.value_layers) * (shape.vocabulary * shape.kv_width + gates)
    embeddings = ((1 if shape.tied else 2) * shape.vocabulary + shape.padding) * width
    if shape.positions == "learned":
        embeddings += shape.context * width
    return shape.layers * (attention + feed_forward + 2 * norm) + norm + values + embeddings


def host_bytes(shape: DecoderShape, copies: int) -> int:
    """Memory in which fp32 weights are held so many times, with the tables of fixed numbers beside them."""
    tables = shape.layers * shape.context**2 if shape.attention == "plain" else 0
    if shape.positions == "rotary":
        tables += 8 * shape.context * shape.head_width
    return 4 * copies * num_weights(shape) + tables


def make_norm(shape: DecoderShape) -> nn.Module:
    """A norm over the width of the residual stream. RMSNorm after Zhang and Sennrich 2019."""
    if shape.norm == "rmsnorm":
        return nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
    return nn.LayerNorm(shape.width, eps=shape.norm_epsilon, bias=shape.bias)


def activate(mlp: str, up: Tensor, gate: Tensor | None) -> Tensor:
    """What stands between the matrices of the feed-forward part.

    gelu: GPT-2's tanh form. gelu_sigmoid: the same by tanh(u) = 2 sigmoid(2u) - 1; an exponential costs a
    vector unit half of what a tanh does, and the compiler keeps the steps in registers. relu2: relu squared, So et al. 2021. swiglu: silu(gate) * up, Shazeer 2020.
    """
    match mlp:
        case "gelu":
            return F.gelu(up, approximate="tanh")
        case "gelu_sigmoid":
            x = up.float()
            return (x * torch.sigmoid(GELU_SLOPE * (x + 0.044715 * x * x * x))).to(up.dtype)
        case "relu2":
            return F.relu(up).square()
        case _:
            assert gate is not None
            return F.silu(gate) * up


def rotary_table(shape: DecoderShape) -> Tensor:
    """Cosines and sines, (2, context, head_width) in fp32: position times wavelength, both halves alike.

    Su et al. 2021, in the half-split order of `transformers`: channel i turns with i + head_width / 2.
    """
    half = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    angles = torch.outer(
        torch.arange(shape.context, dtype=torch.float32), 1.0 / shape.rotary_theta**half
    )
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()))


def turn(x: Tensor, table: Tensor) -> Tensor:
    """Queries or keys (B, heads, T, head_width), turned by their position; computed in fp32.

    `table` is `rotary_table` cut to T, or (2, B, 1, T, head_width). Returns fp32: in bf16 the angles of far positions blur.
    """
    cos, sin = table
    x = x.float()
    left, right = x.chunk(2, dim=-1)
    turned: Tensor = x * cos + torch.cat((-right, left), dim=-1) * sin
    return turned


def within_documents(places: Tensor) -> Tensor:
    """bool (B, 1, T, T): True where the query may see the key, which is of its own document and not later.

    `places` (B, T) counts each token inside its document, from 0.
    """
    document = (places == 0).cumsum(1)
    same = document[:, None, :, None] == document[:, None, None, :]
    length = places.shape[1]
    return same & torch.ones(length, length, dtype=torch.bool, device=places.device).tril()


def attend(q: Tensor, k: Tensor, v: Tensor, future: Tensor, dropout: float) -> Tensor:
    """Causal attention written out, for the compiler to fuse mask, scale, softmax and casts into one pass.

    q (B, heads, T, head_width); k and v may have fewer heads, each serving as many queries. `future` is
    True where a key comes after the query (or is of another document), at least (T, T), or (B, 1, T, T).
    Block by block of queries: no block meets the keys after its own, which spares up to half of the scores.
    """
    shared_by, length = q.shape[1] // k.shape[1], q.shape[2]
    if shared_by > 1:
        k, v = (t.repeat_interleave(shared_by, dim=1) for t in (k, v))
    blocks = max(1, min(MOST_BLOCKS, length // SHORTEST_BLOCK))
    edges = [length * i // blocks for i in range(blocks + 1)]
    mixed = []
    for first, last in pairwise(edges):
        scores = q[:, :, first:last] @ k[:, :, :last].transpose(-2, -1)
        scores = scores * (1.0 / math.sqrt(q.shape[-1]))
        scores = scores.masked_fill(future[..., first:last, :last], float("-inf"))
        weights = F.softmax(scores.float(), dim=-1).to(v.dtype)
        mixed.append(F.dropout(weights, dropout) @ v[:, :, :last])
    return torch.cat(mixed, dim=2) if len(mixed) > 1 else mixed[0]


def value_gate(projection: nn.Linear, x: Tensor) -> Tensor:
    """How much of its value embedding each token (B, T) adds in each head of values: 0 to 2, at first 1.

    2 sigmoid of a product with the first channels of the attention's input `x`, whose weights start at
    zero. Value embeddings as in nanochat (karpathy/nanochat, nanochat/gpt.py: `value_embeds`, `ve_gate`),
    in the same layers; from modded-nanogpt, after value residual learning, Zhou et al. 2024,
    arXiv 2410.17897.
    """
    return 2 * torch.sigmoid(projection(x[..., : projection.in_features]))
