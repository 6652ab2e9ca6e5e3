"""A decoder directory in the format of transformers, and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hotloop.core.causal_config import CausalModel
from hotloop.core.errors import UsageError
from hotloop.finetune.adapters import add_adapter, keep_gradients, quantization
from hotloop.finetune.encoder import weights_fingerprint
from hotloop.finetune.pretrained import Warn, check_length, loading, tokenizer_json

MAX_TOKENS = 1024
"""`model.max_tokens: auto`, where the model reads as many."""
ATTENTION_DROPOUTS = "attn_pdrop", "attention_dropout", "attention_probs_dropout_prob"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What is known of a model before its weights are read."""

    tokenizer: Any
    tokenizer_json: bytes
    longest: int | None
    """Tokens that the model has positions for; `None` where it does not say."""
    drops: bool
    """Its attention has dropout."""


def load_vocabulary(config: CausalModel, warn: Warn) -> Vocabulary:
    """Raises `UsageError`."""
    path, trusted = config.path, config.trust_remote_code
    with loading(path, warn, trusted=trusted) as (transformers, source, common):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, use_fast=True, **common)
        stored = transformers.AutoConfig.from_pretrained(source, **common)
    longest = getattr(stored, "max_position_embeddings", None)
    drops = any(getattr(stored, name, None) for name in ATTENTION_DROPOUTS)
    return Vocabulary(tokenizer, tokenizer_json(tokenizer, path), longest, drops)


def longest_example(config: CausalModel, vocabulary: Vocabulary) -> int:
    """`model.max_tokens`, resolved. Raises `UsageError`."""
    longest = vocabulary.longest
    if config.max_tokens == "auto":
        return min(MAX_TOKENS, longest or MAX_TOKENS)
    check_length(config.max_tokens, longest, config.path)
    return config.max_tokens


@dataclass(frozen=True, slots=True)
class LoadedDecoder:
    model: Any
    """An `AutoModelForCausalLM` in fp32 on the CPU, or quantized on its device, with the adapter in it."""
    adapter: Any | None
    """What peft saves the adapter with; `None` without one."""
    fingerprint: str


def load_decoder(
    config: CausalModel, device: torch.device, warn: Warn, *, precision: str = "fp32"
) -> LoadedDecoder:
    """precision: of products with quantized weights. Draws from torch's generator. Raises `UsageError`."""
    own, trusted = config.path, config.trust_remote_code
    with loading(own, lambda note: None, trusted=trusted) as (transformers, source, common):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            **common,
            **quantization(config.lora, device, precision),
        )
    keep_gradients(model)
    try:
        model.generation_config.validate(strict=True)
    except (
        ValueError
    ):  # it says how to draw, and not that anything is drawn: some versions save no such model
        model.generation_config.do_sample = True
    if new := sorted(str(each) for each in report["missing_keys"]):
        warn(f"new, with random weights: {', '.join(new[:5])}{', ...' if len(new) > 5 else ''}")
    adapter = None
    if config.lora.rank:
        adapter = add_adapter(model, config.lora, config.path)
        model = adapter.get_base_model()
    return LoadedDecoder(model, adapter, weights_fingerprint(model, b""))


@torch.no_grad()
def check_reads_only_before(model: Any, ids: np.ndarray, path: str) -> None:
    """Raises `UsageError` for a model whose tokens read later ones: it would be shown what it is to predict."""
    if len(ids) < 2:
        return
    was_training, device = model.training, next(model.parameters()).device
    row = torch.from_numpy(ids.astype(np.int64))[None].to(device)
    other = row.clone()
    other[0, -1] = row[0, 0] if row[0, 0] != row[0, -1] else (row[0, -1] + 1) % model.config.vocab_size  # fmt: skip
    model.eval()
    try:
        found, changed = (model(input_ids=each, use_cache=False).logits[0, :-1].float() for each in (row, other))  # fmt: skip
    finally:
        model.train(was_training)
    # Where they do not, the same kernels compute the same bits; weights fresh from a generator make a small difference.
    if float((found - changed).abs().max()) > 1e-6 * max(1.0, float(found.abs().max())):
        raise UsageError(
            f"{type(model).__name__} is no decoder as it is: its tokens read those behind them, which they are to predict",
            where=path,
            do="give a decoder (GPT-2, Llama, Qwen), or `--task classification` and its like for an encoder",
        )
