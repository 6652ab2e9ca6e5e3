"""A model directory in the format of transformers: read with its tokenizer, written so that it loads there."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import EncoderConfig
from hotloop.finetune.heads import Head
from hotloop.finetune.joint import Joint
from hotloop.finetune.two_heads import TwoHeads
from hotloop.models.export import TOLERANCE, ExportDiffers, appearing_whole, quiet

Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Encoder:
    model: Any
    """Of the head's class, or `TwoHeads`; in fp32 on the CPU."""
    tokenizer: Any
    tokenizer_json: bytes
    fingerprint: str
    """Of weights, config and tokenizer."""


def check_directory(path: str, warn: Warn | None = None) -> None:
    """Raises `UsageError` for what cannot be loaded. Cheap, for before anything else is done."""
    directory = Path(path).expanduser()
    if not directory.is_dir():
        if path.startswith((".", "/", "~")) or directory.exists():
            raise UsageError(
                "no such model directory", where=path, do="name one that `save_pretrained` wrote"
            )
        if warn is not None:
            warn(
                f"no directory `{path}` here: transformers looks in its cache and asks huggingface.co"
            )
        return
    if not (directory / "config.json").is_file():
        raise UsageError(
            "no model in the format of transformers: it has no config.json",
            where=path,
            do="name the directory that `save_pretrained` wrote",
        )
    if not any(directory.glob("*.safetensors")):
        pickles = [each.name for pattern in ("*.bin", "*.pt", "*.pth") for each in directory.glob(pattern)]  # fmt: skip
        what = "no weights in safetensors"
        if pickles:
            what += f", only {pickles[0]}, a pickle, which could run any code when it is read"
        raise UsageError(
            what,
            where=path,
            do="save them with `model.save_pretrained(directory)` of transformers 5",
        )


def load_encoder(config: EncoderConfig, head: Head, warn: Warn) -> Encoder:
    """With that head, new where the directory has none that fits. Draws from torch's generator.

    Raises `UsageError`.
    """
    check_directory(config.path, warn)
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise UsageError(
            "fine-tuning needs transformers", do="pip install 'hotloop[export]'"
        ) from error
    directory = Path(config.path).expanduser()
    source = str(directory) if directory.is_dir() else config.path
    common = {"trust_remote_code": False, "local_files_only": directory.is_dir()}
    new: set[str] = set()

    def loaded(head: Head) -> Any:
        names = dict(enumerate(head.outputs))
        model, report = getattr(transformers, head.model_class).from_pretrained(
            source,
            num_labels=len(names),
            id2label=names,
            label2id={name: number for number, name in names.items()},
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            output_loading_info=True,
            **({} if head.problem is None else {"problem_type": head.problem}),
            **common,
        )
        new.update(str(each).rpartition(".")[0] for each in report["missing_keys"])
        return model

    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, use_fast=True, **common)
            splitter = getattr(getattr(tokenizer, "backend_tokenizer", None), "pre_tokenizer", None)
            if head.reads != "first" and isinstance(splitter, ByteLevel) and not splitter.add_prefix_space:  # fmt: skip
                # else a word is taken for the end of the one before it
                tokenizer = transformers.AutoTokenizer.from_pretrained(
                    source, use_fast=True, add_prefix_space=True, **common
                )
                tokenizer.backend_tokenizer.pre_tokenizer.add_prefix_space = True
            model = (
                TwoHeads(loaded(head.first), loaded(head.each))
                if isinstance(head, Joint)
                else loaded(head)
            )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, ImportError, safetensors.SafetensorError) as error:  # fmt: skip
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        what = f"transformers cannot load this model: {first[:200] or type(error).__name__}"
        raise UsageError(what, where=config.path) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(
            "this model has no fast tokenizer", where=config.path, do="save one with it"
        )
    if new:
        warn(f"new, with random weights: {', '.join(sorted(new))}")
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        warn(f"the tokenizer has no pad token: `{tokenizer.eos_token}` takes its place")
        tokenizer.pad_token = tokenizer.eos_token
    for part in (model.sequence, model.token) if isinstance(model, TwoHeads) else (model,):
        if getattr(part.config, "pad_token_id", None) is None:
            part.config.pad_token_id = tokenizer.pad_token_id
    _check_length(model, config)
    tokenizer_json = backend.to_str().encode()
    return Encoder(model, tokenizer, tokenizer_json, weights_fingerprint(model, tokenizer_json))


def _check_length(model: Any, config: EncoderConfig) -> None:
    longest = longest_text(model)
    if longest is not None and config.max_tokens > longest:
        raise UsageError(
            f"this model reads at most {longest} tokens, and `model.max_tokens` is {config.max_tokens}",
            where=config.path,
            do=f"set `model.max_tokens={longest}`",
        )


def longest_text(model: Any) -> int | None:
    """Tokens that a model with learned positions reads."""
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return None
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def weights_fingerprint(model: nn.Module, tokenizer: bytes) -> str:
    """With the weights as they were drawn and read, so that another transformers or seed is noticed, too."""
    digest = hashlib.sha256(tokenizer)
    for name, weight in model.named_parameters():
        digest.update(name.encode())
        digest.update(weight.detach().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_ids(tokens: Sequence[np.ndarray], model: Any, path: str) -> None:
    """Raises `UsageError` for a tokenizer that is not the model's."""
    highest, rows = (
        max(int(ids.max()) for ids in tokens),
        model.get_input_embeddings().num_embeddings,
    )
    if highest >= rows:
        raise UsageError(
            f"the tokenizer gives the id {highest}, and the model embeds {rows}",
            where=path,
            do="put the model's own tokenizer into its directory",
        )


@torch.no_grad()
def export(
    model: Any,
    tokenizer: Any,
    directory: Path,
    tokens: Sequence[np.ndarray],
    *,
    auto: str = "AutoModelForSequenceClassification",
) -> None:
    """Write `directory`, whole or not at all, and check that `auto` loads it with the same weights, and gives `tokens` the same logits."""
    import transformers

    if directory.exists():  # of this run, before it went on or back
        shutil.rmtree(directory)
    was_training, device = model.training, next(model.parameters()).device
    model.eval().cpu()
    try:
        with appearing_whole(directory) as written, quiet():
            model.save_pretrained(written)
            tokenizer.save_pretrained(written)
            theirs = (
                getattr(transformers, auto)
                .from_pretrained(written, local_files_only=True, dtype=torch.float32)
                .eval()
            )
            own = dict(model.named_parameters())
            same = all(torch.equal(p, own[name]) for name, p in theirs.named_parameters())
            for each in tokens:
                ids = torch.from_numpy(each.astype(np.int64))[None]
                logits = model(input_ids=ids).logits
                # Not to the bit: where a tensor lies in memory decides which kernel computes its edges.
                difference = float((logits - theirs(input_ids=ids).logits).abs().max())
                same = same and difference <= TOLERANCE * max(1.0, float(logits.abs().max()))
            if not same:
                raise ExportDiffers(
                    "transformers computes other logits from the exported model",
                    where=str(directory),
                    do=f"nothing was kept; this is a bug in hotloop, or in transformers {transformers.__version__}",
                )
    finally:
        model.to(device).train(was_training)
