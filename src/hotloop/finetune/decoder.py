"""A decoder directory in the format of transformers, and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

from hotloop.core.causal_config import CausalModel
from hotloop.core.errors import UsageError
from hotloop.finetune.adapters import add_adapter, quantization
from hotloop.finetune.encoder import Warn, check_directory, weights_fingerprint
from hotloop.models.export import quiet

MAX_TOKENS = 1024
"""`model.max_tokens: auto`, where the model reads as many."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What is known of a model before its weights are read."""

    tokenizer: Any
    tokenizer_json: bytes
    longest: int | None
    """Tokens that the model has positions for; `None` where it does not say."""


def load_vocabulary(path: str, warn: Warn) -> Vocabulary:
    """Raises `UsageError`."""
    check_directory(path, warn)
    with _loading(path) as (transformers, source, common):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, use_fast=True, **common)
        config = transformers.AutoConfig.from_pretrained(source, **common)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError("this model has no fast tokenizer", where=path, do="save one with it")
    longest = getattr(config, "max_position_embeddings", None)
    return Vocabulary(tokenizer, backend.to_str().encode(), longest)


def longest_example(config: CausalModel, vocabulary: Vocabulary) -> int:
    """`model.max_tokens`, resolved. Raises `UsageError`."""
    longest = vocabulary.longest
    if config.max_tokens == "auto":
        return min(MAX_TOKENS, longest or MAX_TOKENS)
    if longest is not None and config.max_tokens > longest:
        raise UsageError(
            f"this model reads at most {longest} tokens, and `model.max_tokens` is {config.max_tokens}",
            where=config.path,
            do=f"set `model.max_tokens={longest}`",
        )
    return config.max_tokens


@dataclass(frozen=True, slots=True)
class LoadedDecoder:
    model: Any
    """An `AutoModelForCausalLM` in fp32 on the CPU, with the adapter in it."""
    adapter: Any | None
    """What peft saves the adapter with; `None` without one."""
    fingerprint: str


def load_decoder(config: CausalModel, device: torch.device, warn: Warn) -> LoadedDecoder:
    """Draws from torch's generator. Raises `UsageError`."""
    with _loading(config.path) as (transformers, source, common):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            **common,
            **quantization(config.lora, device),
        )
    if new := sorted(str(each) for each in report["missing_keys"]):
        warn(f"new, with random weights: {', '.join(new[:5])}{', ...' if len(new) > 5 else ''}")
    fingerprint, adapter = "", None
    if config.lora.rank:
        adapter = add_adapter(model, config.lora, config.path)
        model = adapter.get_base_model()
    if config.lora.quantize == "none":
        fingerprint = weights_fingerprint(model, b"")
    return LoadedDecoder(model, adapter, fingerprint)


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


@contextmanager
def _loading(path: str) -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """transformers, the place to load from, and arguments. What goes wrong within becomes a `UsageError`."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise UsageError(
            "fine-tuning needs transformers", do="pip install 'hotloop[export]'"
        ) from error
    directory = Path(path).expanduser()
    source = str(directory.resolve()) if directory.is_dir() else path
    try:
        with quiet():
            yield transformers, source, {"trust_remote_code": False, "local_files_only": directory.is_dir()}  # fmt: skip
    except UsageError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, ImportError, safetensors.SafetensorError) as error:  # fmt: skip
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        what = f"transformers cannot load this model: {first[:200] or type(error).__name__}"
        raise UsageError(what, where=path) from error
