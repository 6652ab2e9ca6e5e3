"""Each text as token ids, made once and kept in the cache: an epoch reads them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor

from hotloop.core.cache import cache_directory, entry_in_use, make_room
from hotloop.core.errors import UsageError
from hotloop.core.files import storing
from hotloop.finetune.examples import Examples

Tokens = list[np.ndarray]
"""int32, one array for each example, with the special tokens of the model."""


def tokenized(tokenizer: Any, identity: str, examples: Examples, max_tokens: int) -> Tokens:
    """`identity` names the tokenizer's contents. From the cache where these texts were tokenized before. Raises `UsageError`."""
    digest = hashlib.sha256(f"{identity} {max_tokens}{beside_json(tokenizer)}".encode())
    for text in examples.texts:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())

    name = digest.hexdigest()[:32]
    found = cached(name, len(examples), lambda: encoded(tokenizer, examples.texts, max_tokens)[0])
    check_read(found, examples)
    return found


def beside_json(tokenizer: Any) -> str:
    """Names what ids depend on and tokenizer.json does not say, where it is not the usual: the end at which long texts are cut, and special tokens that are split like any text."""
    is_left = getattr(tokenizer, "truncation_side", "right") == "left"
    return " left" * is_left + " split" * getattr(tokenizer, "split_special_tokens", False)


def encoded(
    tokenizer: Any, texts: Sequence[Any], max_tokens: int, **more: Any
) -> tuple[Tokens, Any]:
    """The ids of each text, none of a text that the tokenizer sees nothing in, and all that it gave."""
    found = tokenizer(
        list(texts),
        truncation=True,
        max_length=max_tokens,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        **more,
    )
    return [np.asarray(ids, dtype=np.int32) for ids in found["input_ids"]], found


def check_read(tokens: Tokens, examples: Examples) -> None:
    """Raises `UsageError` for a text without any token."""
    for number, (ids, text) in enumerate(zip(tokens, examples.texts, strict=True)):
        if not len(ids):
            shown = text if isinstance(text, str) else " ".join(text)
            what = f"the tokenizer makes no token of the text {shown[:80]!r}"
            raise UsageError(what, where=examples.place(number), do="remove that example: no special tokens are added to a text either")  # fmt: skip


def padded_rows(tokens: Tokens, pad_id: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, int64 (examples, the longest of them)."""
    ids = torch.full((len(tokens), max(map(len, tokens))), pad_id)
    mask = torch.zeros_like(ids)
    for row, own in enumerate(tokens):
        ids[row, : len(own)], mask[row, : len(own)] = torch.from_numpy(own.astype(np.int64)), 1
    return ids, mask


def cached(name: str, num: int, make: Callable[[], Tokens]) -> Tokens:
    """What `make` gives, `num` arrays, from the cache where it was made before; `name` is unique to it."""
    entry = cache_directory() / "pieces" / f"examples-{name}"
    entry_in_use(entry)
    path = entry / "tokens.safetensors"
    if path.exists():
        try:
            stored = safetensors.numpy.load_file(path)
            ids, lengths = stored["ids"], stored["lengths"]
            if len(lengths) == num and lengths.sum() == len(ids):
                return np.split(ids, np.cumsum(lengths)[:-1])
        except (OSError, KeyError, safetensors.SafetensorError):
            pass  # made again
    arrays = make()
    _keep(path, arrays)
    return arrays


def _keep(path: Path, arrays: Tokens) -> None:
    lengths = np.array([len(ids) for ids in arrays], dtype=np.int64)
    with storing(path, "keep the tokens"):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        os.close(descriptor)
        safetensors.numpy.save_file({"ids": np.concatenate(arrays), "lengths": lengths}, temporary)
        os.replace(temporary, path)
    make_room()
