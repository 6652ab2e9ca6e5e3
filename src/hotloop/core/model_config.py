"""The settings of the model, and what every block of settings shares.

A family is a preset, and every part of it can be set on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_COUNT = 1_000_000_000
"""The largest count in any setting; what goes on to torch or numpy stays within their 64 bits."""

Positive = Annotated[int, Field(gt=0, le=MAX_COUNT)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Section(BaseModel):
    """One block of settings."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["learned", "rotary"]
Mlp = Literal["gelu", "swiglu", "relu2"]


Size = Annotated[int, Field(gt=0, le=1 << 20)]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts a decoder is made of."""

    norm: Norm
    positions: Positions
    mlp: Mlp
    bias: bool
    tied: bool


FAMILIES = {
    "gpt2": Parts(norm="layernorm", positions="learned", mlp="gelu", bias=True, tied=True),
    "llama": Parts(norm="rmsnorm", positions="rotary", mlp="swiglu", bias=False, tied=False),
}


class ModelConfig(Section):
    family: Literal["gpt2", "llama"] = "gpt2"
    """Preset for `norm`, `positions`, `mlp`, `bias` and `tied` where they are null.
    gpt2: layernorm, learned, gelu, biases, tied. llama: rmsnorm, rotary, swiglu, no biases, untied."""
    layers: Annotated[int, Field(gt=0, le=10_000)] = 6
    width: Size = 384
    """Width of the residual stream. Must be a multiple of `heads`."""
    heads: Size = 6
    context: Size = 256
    """Tokens a sequence holds, and the longest context the model can see."""
    vocabulary: Annotated[int, Field(gt=0, le=1 << 26)] | None = None
    """Ids the model can embed; null takes the tokenizer's size."""
    pad_vocabulary_to: Size = 1
    """The output matrix gets rows of zeros up to a multiple of this, which suits the units that multiply. They take no
    part in the loss and are left out by `generate` and `export`."""
    dropout: Fraction = 0.0
    norm: Norm | None = None
    """null takes the family's."""
    norm_epsilon: PositiveNumber = 1e-5
    """Added to the variance in every norm."""
    positions: Positions | None = None
    """`learned` adds an embedding per position; `rotary` turns queries and keys. null takes the family's."""
    rotary_theta: PositiveNumber = 10000.0
    """Base of the rotary wavelengths. Needs `positions: rotary`."""
    mlp: Mlp | None = None
    """Feed-forward part; `swiglu` has a third matrix, the gate. null takes the family's."""
    hidden: Annotated[int, Field(gt=0, le=1 << 24)] | None = None
    """Inner width of the feed-forward part. null takes 4 x `width`; with swiglu 8/3 x `width`, rounded
    up to a multiple of 64."""
    kv_heads: Size | None = None
    """Heads of keys and values, each shared by `heads / kv_heads` query heads. null takes `heads`."""
    qk_norm: bool = False
    """RMSNorm over every head of queries and keys, before the rotary turn."""
    value_embeddings: bool = False
    """Every second layer, the last included, adds an embedding of its own of the token to its values,
    through a gate per head: many weights (`vocabulary` x width of the values each), little arithmetic."""
    bias: bool | None = None
    """Biases in linear layers and layernorms. null takes the family's."""
    tied: bool | None = None
    """The head uses the embedding's matrix. null takes the family's."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"`width` {self.width} is not a multiple of `heads` {self.heads}")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(
                f"`heads` {self.heads} is not a multiple of `kv_heads` {self.kv_heads}: "
                "each key head serves the same number of query heads"
            )
        if self.parts.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(
                f"rotary positions turn pairs, and `width` {self.width} over `heads` {self.heads} "
                f"gives heads of {self.width // self.heads}; choose an even head width"
            )
        return self

    @property
    def parts(self) -> Parts:
        """The family's parts, with those that are set on their own in place."""
        preset = FAMILIES[self.family]
        return Parts(
            norm=self.norm or preset.norm,
            positions=self.positions or preset.positions,
            mlp=self.mlp or preset.mlp,
            bias=preset.bias if self.bias is None else self.bias,
            tied=preset.tied if self.tied is None else self.tied,
        )

    @property
    def inner_width(self) -> int:
        """`hidden`, or what it is when null."""
        if self.hidden is not None:
            return self.hidden
        if self.parts.mlp == "swiglu":
            return -(-8 * self.width // (3 * 64)) * 64
        return 4 * self.width
