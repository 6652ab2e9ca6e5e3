"""Weights of a GPT-2, Llama or Qwen 3 in the format of `transformers`, into a decoder of the same shape.

Reads safetensors and JSON alone: nothing in the directory can run code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotloop.core.errors import UsageError
from hotloop.core.tensor_file import read_tensors
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.models.decoder import Decoder
from hotloop.models.hf_names import PADDED, weights
from hotloop.models.shape import DecoderShape

_ACTIVATIONS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu2": "relu2"}
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""What older files hold beside the weights."""


@torch.no_grad()
def load_hf_weights(model: Decoder, directory: Path) -> None:
    """Copy the weights in `directory` into `model`, as fp32.

    Raises `UsageError` naming every setting of the config that is another there, and for families,
    settings and files that are not known here.
    """
    _refuse_other_settings(model.shape, _settings(directory), directory)
    found = _tensors(directory)
    own = dict(model.named_parameters())
    for weight in weights(model.shape):
        parts = [_take(found, name, directory) for name in weight.theirs]
        target: Tensor = own[weight.ours]
        if weight.ours in PADDED:
            target = target[: model.shape.vocabulary]
        try:
            tensor = torch.cat(parts) if len(parts) > 1 else parts[0]
            if weight.transposed:
                tensor = tensor.t()
        except RuntimeError as error:
            what = f"weight `{weight.theirs[0]}` has another shape than its config.json says"
            raise UsageError(what, where=str(directory)) from error
        if weight.ours == "positions.weight":
            tensor = tensor[: target.shape[0]]
        if tensor.shape != target.shape:
            raise UsageError(
                f"weight `{weight.theirs[0]}` gives {tuple(tensor.shape)} where its config.json says "
                f"{tuple(target.shape)}",
                where=str(directory),
            )
        target.copy_(tensor)
    found.pop("lm_head.weight", None)  # written also where it is tied
    left = sorted(name for name in found if not name.endswith(_BUFFERS))
    if left:
        raise UsageError(f"unknown weight `{left[0]}`", where=str(directory))


def _settings(directory: Path) -> dict[str, Any]:
    """What the config.json says, in the words of `DecoderShape`."""
    path = directory / "config.json"
    try:
        config = parse_object(read_bytes(path))
    except FileNotFoundError as error:
        raise UsageError(
            "no model in the format of transformers: it has no config.json", where=str(directory)
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read config.json: {error}", where=str(path)) from error
    try:
        match config.get("model_type"):
            case "gpt2":
                return _gpt2(config, path)
            case "llama" | "qwen3" as kind:
                return _llama(config, path, qk_norm=kind == "qwen3")
            case other:
                raise UsageError(
                    f"a model of type {other!r} cannot be imported",
                    where=str(path),
                    do="gpt2, llama and qwen3 can",
                )
    except KeyError as error:
        raise UsageError(f"config.json lacks {error}", where=str(path)) from error
    except (AttributeError, TypeError, ZeroDivisionError) as error:
        raise UsageError(f"damaged config.json: {error}", where=str(path)) from error


def _gpt2(config: dict[str, Any], path: Path) -> dict[str, Any]:
    activation = config.get("activation_function", "gelu_new")
    _refuse(activation not in _ACTIVATIONS, f"activation_function {activation!r}", path)
    _refuse(not config.get("scale_attn_weights", True), "scale_attn_weights false", path)
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        _refuse(bool(config.get(key)), f"{key} true", path)
    return {
        "positions": "learned",
        "norm": "layernorm",
        "mlp": _ACTIVATIONS[activation],
        "vocabulary": config["vocab_size"],
        "context": config["n_positions"],
        "layers": config["n_layer"],
        "width": config["n_embd"],
        "heads": config["n_head"],
        "kv_heads": config["n_head"],
        "hidden": config.get("n_inner") or 4 * config["n_embd"],
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
        "bias": True,
        "tied": config.get("tie_word_embeddings", True),
        "qk_norm": False,
        "value_embeddings": False,
    }


def _llama(config: dict[str, Any], path: Path, *, qk_norm: bool) -> dict[str, Any]:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    _refuse(kind != "default", f"rope_type {kind!r}", path)
    _refuse(config.get("hidden_act", "silu") != "silu", f"hidden_act {config.get('hidden_act')!r}", path)  # fmt: skip
    # Qwen 3's class takes 128 where its config says nothing.
    head_width = config.get("head_dim") or (128 if qk_norm else width // heads)
    _refuse(head_width != width // heads, "head_dim apart", path)
    _refuse(bool(config.get("use_sliding_window")), "use_sliding_window true", path)
    biases = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    _refuse(biases[0] != biases[1], "biases in only one of attention and feed-forward", path)
    return {
        "positions": "rotary",
        "rotary_theta": rotary.get("rope_theta") or config.get("rope_theta", 10000.0),
        "norm": "rmsnorm",
        "mlp": "swiglu",
        "vocabulary": config["vocab_size"],
        "context": config["max_position_embeddings"],
        "layers": config["num_hidden_layers"],
        "width": width,
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "hidden": config["intermediate_size"],
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "bias": biases[0],
        "tied": config.get("tie_word_embeddings", False),
        "qk_norm": qk_norm,
        "value_embeddings": False,
    }


def _refuse(refused: bool, what: str, path: Path) -> None:
    if refused:
        raise UsageError(f"a model with {what} cannot be imported", where=str(path))


def _refuse_other_settings(shape: DecoderShape, theirs: dict[str, Any], directory: Path) -> None:
    def here(key: str) -> Any:
        return {"kv_heads": shape.kv_heads or shape.heads, "hidden": shape.inner_width}.get(
            key, getattr(shape, key)
        )

    different = [
        f"`model.{key}: {json.dumps(value)}` (here {json.dumps(here(key))})"
        for key, value in theirs.items()
        if (here(key) > value if key == "context" else here(key) != value)
    ]
    if different:
        raise UsageError(
            "the model to start from has other settings: " + ", ".join(different),
            where=str(directory),
            do="give the config these settings (a shorter `model.context` is fine)",
        )


def _tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors, of one file or of those that an index names, without the classes' prefixes."""
    files = ["model.safetensors"]
    try:
        if (directory / "model.safetensors.index.json").is_file():
            index = parse_object(read_bytes(directory / "model.safetensors.index.json"))
            files = sorted(set(map(str, index["weight_map"].values())))
        found: dict[str, Tensor] = {}
        for name in files:
            if Path(name).name != name:
                raise UsageError(
                    f"its index names a file outside it: {name!r}", where=str(directory)
                )
            found |= read_tensors(directory / name, mapped=True)
    except FileNotFoundError as error:
        do = "only safetensors are read: other weight files can run code"
        raise UsageError(f"no {name} in it", where=str(directory), do=do) from error
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UsageError(f"cannot read the weights: {error}", where=str(directory)) from error
    return {_bare(name): tensor for name, tensor in found.items()}


def _bare(name: str) -> str:
    """Files of the bare model, without a head, have no prefix: GPT-2's on the hub for one."""
    return name.removeprefix("transformer.").removeprefix("model.")


def _take(found: dict[str, Tensor], name: str, directory: Path) -> Tensor:
    try:
        return found.pop(_bare(name))
    except KeyError:
        raise UsageError(f"weight `{name}` is missing", where=str(directory)) from None
