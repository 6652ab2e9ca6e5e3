"""What a decoder is called in `transformers`: classes, settings and weights of GPT-2, Llama and Qwen 3.

One table serves both directions, so that what `export` writes `import_hf` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.models.shape import DecoderShape

CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""`model_type` of a config.json to the class that loads it."""

_ACTIVATIONS = {"gelu": "gelu_new", "relu2": "relu2", "swiglu": "silu"}


PADDED = ("tokens.weight", "head.weight")
"""Ours, which may have more rows than there are ids."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One of our weights and what it is over there."""

    ours: str
    theirs: tuple[str, ...]
    """Several where ours is theirs stacked along the rows, with `rows` of each."""
    rows: tuple[int, ...] = ()
    transposed: bool = False
    """Conv1D keeps (in, out) where a linear layer keeps (out, in)."""


def model_type_of(shape: DecoderShape) -> str:
    """`gpt2`, `llama`, or `qwen3`, which is a Llama with QK norm.

    Raises `UsageError` naming every setting that the class cannot express.
    """
    learned = shape.positions == "learned"
    if learned:
        kind, name, can = "gpt2", "GPT-2", {"norm": ("layernorm",), "mlp": ("gelu", "relu2")}
    else:
        kind, name = ("qwen3", "Qwen 3") if shape.qk_norm else ("llama", "Llama")
        can = {"norm": ("rmsnorm",), "mlp": ("swiglu",)}
    refused = [
        f"`model.{key}: {getattr(shape, key)}`"
        for key, values in can.items()
        if getattr(shape, key) not in values
    ]
    if learned and shape.kv_width != shape.width:
        refused.append(f"`model.kv_heads: {shape.kv_heads}`")
    if learned and shape.qk_norm:
        refused.append("`model.qk_norm: true`")
    if kind == "qwen3" and shape.bias:
        refused.append("`model.bias: true`")
    if shape.value_embeddings:
        refused.append("`model.value_embeddings: true`")
    if refused:
        what = f"{shape.positions} positions" + (" and QK norm" if kind == "qwen3" else "")
        raise UsageError(
            f"transformers' {name}, the class for {what}, has no " + ", ".join(refused),
            do="only models that one of its classes computes exactly are exported",
        )
    return kind


def hf_config(shape: DecoderShape, end_of_text: int) -> dict[str, Any]:
    """The config.json of a shape. Raises `UsageError` as `model_type_of`."""
    kind = model_type_of(shape)
    common = {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "initializer_range": 0.02,
        "use_cache": True,
        "dtype": "float32",
        "torch_dtype": "float32",  # its name before transformers 5
    }
    if kind == "gpt2":
        return common | {
            "n_positions": shape.context,
            "n_embd": shape.width,
            "n_layer": shape.layers,
            "n_head": shape.heads,
            "n_inner": shape.inner_width,
            "activation_function": _ACTIVATIONS[shape.mlp],
            "layer_norm_epsilon": shape.norm_epsilon,
            "resid_pdrop": shape.dropout,
            "embd_pdrop": shape.dropout,
            "attn_pdrop": shape.dropout,
        }
    if kind == "llama":  # Qwen 3 has no biases in its feed-forward part, nor a word for them
        common |= {"mlp_bias": shape.bias}
    return common | {
        "max_position_embeddings": shape.context,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "head_dim": shape.head_width,
        "hidden_act": _ACTIVATIONS[shape.mlp],
        "rms_norm_eps": shape.norm_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rotary_theta},
        "rope_theta": shape.rotary_theta,  # where transformers before 5 looks
        "attention_bias": shape.bias,
        "attention_dropout": shape.dropout,
    }


def weights(shape: DecoderShape) -> Iterator[Weight]:
    """Every weight of a decoder of this shape, in no particular order."""
    kind = model_type_of(shape)
    yield from _gpt2(shape) if kind == "gpt2" else _llama(shape)
    if not shape.tied:
        yield Weight("head.weight", ("lm_head.weight",))


def _gpt2(shape: DecoderShape) -> Iterator[Weight]:
    ends = ("weight", "bias") if shape.bias else ("weight",)
    yield Weight("tokens.weight", ("transformer.wte.weight",))
    yield Weight("positions.weight", ("transformer.wpe.weight",))
    for end in ends:
        yield Weight(f"norm.{end}", (f"transformer.ln_f.{end}",))
        for i in range(shape.layers):
            for ours, theirs in (
                ("norm1", "ln_1"),
                ("attention.qkv", "attn.c_attn"),
                ("attention.out", "attn.c_proj"),
                ("norm2", "ln_2"),
                ("up", "mlp.c_fc"),
                ("down", "mlp.c_proj"),
            ):
                yield Weight(
                    f"blocks.{i}.{ours}.{end}",
                    (f"transformer.h.{i}.{theirs}.{end}",),
                    transposed=end == "weight" and "c_" in theirs,
                )


def _llama(shape: DecoderShape) -> Iterator[Weight]:
    yield Weight("tokens.weight", ("model.embed_tokens.weight",))
    yield Weight("norm.weight", ("model.norm.weight",))
    for i in range(shape.layers):
        theirs = f"model.layers.{i}"
        yield Weight(f"blocks.{i}.norm1.weight", (f"{theirs}.input_layernorm.weight",))
        yield Weight(f"blocks.{i}.norm2.weight", (f"{theirs}.post_attention_layernorm.weight",))
        for part in ("q_norm", "k_norm") if shape.qk_norm else ():
            yield Weight(
                f"blocks.{i}.attention.{part}.weight", (f"{theirs}.self_attn.{part}.weight",)
            )
        for end in ("weight", "bias") if shape.bias else ("weight",):
            yield Weight(
                f"blocks.{i}.attention.qkv.{end}",
                tuple(f"{theirs}.self_attn.{part}_proj.{end}" for part in "qkv"),
                rows=(shape.width, shape.kv_width, shape.kv_width),
            )
            yield Weight(f"blocks.{i}.attention.out.{end}", (f"{theirs}.self_attn.o_proj.{end}",))
            for part in ("gate", "up", "down"):
                yield Weight(f"blocks.{i}.{part}.{end}", (f"{theirs}.mlp.{part}_proj.{end}",))
