"""A model directory in the format of transformers: read with its tokenizer, written so that it loads there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import EncoderConfig
from hotloop.finetune.adapters import (
    add_adapter,
    check_lora,
    compare,
    forget,
    keep_gradients,
    quantization,
)
from hotloop.finetune.heads import Head
from hotloop.finetune.joint import Joint
from hotloop.finetune.pretrained import Warn, check_length, loading, tokenizer_json
from hotloop.finetune.two_heads import TwoHeads
from hotloop.models.export import TOLERANCE, appearing_whole, quiet

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Encoder:
    model: Any
    """Of the head's class, or `TwoHeads`; in fp32 on the CPU."""
    tokenizer: Any
    tokenizer_json: bytes
    adapters: list[Any]
    """What peft saves an adapter with, one for each head; none without."""
    fingerprint: str
    """Of weights, config and tokenizer."""


def load_encoder(
    config: EncoderConfig, head: Head, warn: Warn, *, device: torch.device = CPU, precision: str = "fp32"
) -> Encoder:  # fmt: skip
    """With that head, new where the directory has none that fits. Draws from torch's generator.

    device, precision: where quantized weights are, and what products with them are computed in. Raises `UsageError`.
    """
    check_lora(config.lora)
    new: set[str] = set()
    with loading(config.path, warn, trusted=config.trust_remote_code) as (transformers, source, common):  # fmt: skip
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, use_fast=True, **common)
        splitter = getattr(getattr(tokenizer, "backend_tokenizer", None), "pre_tokenizer", None)
        if head.reads != "first" and isinstance(splitter, ByteLevel) and not splitter.add_prefix_space:  # fmt: skip
            # else a word is taken for the end of the one before it
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                source, use_fast=True, add_prefix_space=True, **common
            )
            tokenizer.backend_tokenizer.pre_tokenizer.add_prefix_space = True
        stored = transformers.AutoConfig.from_pretrained(source, **common)
        before = [str(name) for name in (stored.id2label or {}).values()]
        each_head = (head.first, head.each) if isinstance(head, Joint) else (head,)
        models, wholes = [], []
        for each in each_head:
            names = dict(enumerate(each.outputs))
            read = partial(
                getattr(transformers, each.model_class).from_pretrained,
                source,
                num_labels=len(names),
                id2label=names,
                label2id={name: number for number, name in names.items()},
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                dtype=torch.float32,
                **({} if each.problem is None else {"problem_type": each.problem}),
                **common,
            )
            model, report = read(output_loading_info=True)
            # of the latter transformers 4 gives the name alone
            others = (key if isinstance(key, str) else key[0] for key in report["mismatched_keys"])
            absent = {*report["missing_keys"], *others}
            of_this = {str(key).rpartition(".")[0] for key in absent}
            new |= of_this
            # what would not be there beside an adapter that is loaded again, and its head
            heads = {name for name, part in model.named_children() if part is not model.base_model and [*part.parameters()]}  # fmt: skip
            whole = heads | {name for name in of_this if name.partition(".")[0] not in {"", *heads}}
            if config.lora.quantize != "none":
                model = read(**quantization(config.lora, device, precision, whole))
                keep_gradients(model)
            models.append(model)
            wholes.append((each.model_class, whole))
    written = tokenizer_json(tokenizer, config.path)
    if new:
        warn(f"new, with random weights: {', '.join(sorted(new))}")
    elif len(models) == 1 and before != [*head.outputs] and not all(each.startswith("LABEL_") for each in before):  # fmt: skip
        was, now = (", ".join(each)[:100] for each in (before, head.outputs))
        warn(f"the head is kept, whose outputs were {was} and are now {now}")
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        warn(f"the tokenizer has no pad token: `{tokenizer.eos_token}` takes its place")
        tokenizer.pad_token = tokenizer.eos_token
    for part in models:
        part.config.get_text_config().pad_token_id = pad_id_of(part, tokenizer)
    adapters = []
    if config.lora.rank:
        for part, (auto, whole) in zip(models, wholes, strict=True):
            adapters.append(add_adapter(part, config.lora, config.path, auto, whole))
    model = TwoHeads(*models) if len(models) > 1 else models[0]
    check_length(config.max_tokens, longest_text(model), config.path)
    return Encoder(model, tokenizer, written, adapters, weights_fingerprint(model, written))


def pad_id_of(model: Any, tokenizer: Any) -> int | None:
    """What rows are filled up with, if anything: as the model has it, whose head may look for the token before it, else the tokenizer."""
    own = getattr(model.config.get_text_config(), "pad_token_id", None)
    rows = model.get_input_embeddings().num_embeddings
    known = (
        each for each in (own, tokenizer.pad_token_id) if each is not None and 0 <= each < rows
    )
    found: int | None = next(known, None)
    return found


def position_table(base: Any) -> nn.Embedding | None:
    """Learned positions of a model without its head."""
    table = getattr(getattr(base, "embeddings", None), "position_embeddings", None)
    table = getattr(base, "wpe", None) if table is None else table  # GPT-2's
    return table if isinstance(table, nn.Embedding) else None


def longest_text(model: Any) -> int | None:
    """Tokens that a model with learned positions reads."""
    if (table := position_table(model.base_model)) is None:
        return None
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def weights_fingerprint(model: nn.Module, tokenizer: bytes) -> str:
    """With the weights as they were drawn and read, so that another transformers or seed is noticed, too."""
    digest = hashlib.sha256(tokenizer)
    for name, weight in model.named_parameters():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_ids(tokens: Sequence[np.ndarray], model: Any, path: str) -> None:
    """Raises `UsageError` for a tokenizer that is not the model's."""
    highest = max((int(ids.max()) for ids in tokens if len(ids)), default=0)
    rows = model.get_input_embeddings().num_embeddings
    if highest >= rows:
        raise UsageError(
            f"the tokenizer gives the id {highest}, and the model embeds {rows}",
            where=path,
            do="put the model's own tokenizer into its directory",
        )


def check_known(tokens: Sequence[np.ndarray], tokenizer: Any, path: str) -> None:
    """Raises `UsageError` for texts of which the tokenizer knows next to nothing."""
    special = tokenizer.all_special_ids
    num_known = sum(int(np.isin(ids, special, invert=True).sum()) for ids in tokens)
    num_unknown = sum(int((ids == (-1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id)).sum()) for ids in tokens)  # fmt: skip
    if num_unknown > 0.9 * (num_known + num_unknown):
        what = f"{num_unknown:,} of the {num_known + num_unknown:,} tokens of these texts are unknown to the model's tokenizer (`{tokenizer.unk_token}`)"
        do = "give a model of their language and script, with its own tokenizer in its directory"
        raise UsageError(what, where=path, do=do)


@torch.no_grad()
def export(
    model: Any,
    tokenizer: Any,
    directory: Path,
    tokens: Sequence[np.ndarray],
    *,
    auto: str = "AutoModelForSequenceClassification",
    trusted: bool,
) -> None:
    """Write `directory`, whole or not at all, and check that `auto` loads it with the same weights, and gives `tokens` the same logits.

    trusted: with code of the model's own.
    """
    import transformers

    forget(directory)
    was_training, device = model.training, next(model.parameters()).device
    model.eval().cpu()
    try:
        with appearing_whole(directory) as written, quiet():
            model.save_pretrained(written)
            tokenizer.save_pretrained(written)
            read = getattr(transformers, auto).from_pretrained
            source = {"local_files_only": True, "dtype": torch.float32, "trust_remote_code": trusted}  # fmt: skip
            theirs = read(written, **source).eval()
            own = dict(model.named_parameters())
            same = all(torch.equal(p, own[name]) for name, p in theirs.named_parameters())
            inputs = [torch.from_numpy(each.astype(np.int64))[None] for each in tokens]
            # Not to the bit: where a tensor lies in memory decides which kernel computes its edges.
            wanted = [model(input_ids=ids).logits for ids in inputs]
            compare(theirs, inputs, wanted, directory, TOLERANCE, same_weights=same)
    finally:
        model.to(device).train(was_training)
