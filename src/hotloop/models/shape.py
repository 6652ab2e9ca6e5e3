"""The shape of a decoder: what it is made of, how many weights, how much arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotloop.core.judgement import ModelFlops


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Everything that a decoder is built from; the defaults are GPT-2's parts."""

    vocabulary: int
    context: int
    layers: int
    width: int
    heads: int
    dropout: float = 0.0
    attention: str = "sdpa"
    """`sdpa` or `plain`; the same mathematics, summed in another order."""
    norm: str = "layernorm"
    norm_epsilon: float = 1e-5
    positions: str = "learned"
    rotary_theta: float = 10000.0
    mlp: str = "gelu"
    gelu: str = "tanh"
    """`tanh` or `sigmoid`: how GELU's curve is written; the same curve."""
    hidden: int | None = None
    """Inner width of the feed-forward part; `None` is 4 x width."""
    kv_heads: int | None = None
    """Heads of keys and values; `None` is `heads`."""
    qk_norm: bool = False
    value_embeddings: bool = False
    """Every second layer, the last included, adds an embedding of the token to its values."""
    bias: bool = True
    tied: bool = True

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
    embeddings = (1 if shape.tied else 2) * shape.vocabulary * width
    if shape.positions == "learned":
        embeddings += shape.context * width
    return shape.layers * (attention + feed_forward + 2 * norm) + norm + values + embeddings


def host_bytes(shape: DecoderShape, copies: int) -> int:
    """Memory in which fp32 weights are held so many times, with the tables of fixed numbers beside them."""
    tables = shape.layers * shape.context**2 if shape.attention == "plain" else 0
    if shape.positions == "rotary":
        tables += 8 * shape.context * shape.head_width
    return 4 * copies * num_weights(shape) + tables
