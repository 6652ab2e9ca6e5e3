"""The `tokenizers` library, which defines the ids of most tokenizers, and the parts of a tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from hotloop.core.errors import UsageError


class Tokenizers:
    """Any tokenizer.json, by the `tokenizers` library.

    As all libraries, without special tokens, and without reading any text as control.
    """

    package = "tokenizers"
    """The library whose ids they are."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        import tokenizers

        try:
            self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(values))
        except Exception as error:  # the library raises bare Exception
            raise UsageError(f"not a tokenizer: {error}", where=where) from error
        self.tokenizer.encode_special_tokens = True
        self.ids: dict[str, int] = dict(self.tokenizer.get_vocab(with_added_tokens=True))
        """Every token's name and id."""
        self.unknown = _unknown(values["model"], self.ids)
        """Id that stands for what the vocabulary cannot spell, where there is such a one."""

    def encode(self, text: str) -> list[int]:
        with _refusing():
            return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str], *, threads: int) -> list[list[int]]:
        # Its threads are set by the environment, when it starts them.
        with _refusing():
            batch = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def for_engines(self) -> dict[str, Any] | None:
        """A tokenizer.json for those who cannot read the tokenizer's own; `None` where they can.

        Raises `ValueError` with the reason where there is none.
        """
        return None

    def is_text(self, token: int) -> bool:
        """True when a document that holds this token's name literally gives its id."""
        return False


def _unknown(model: Any, ids: dict[str, int]) -> int | None:
    if not isinstance(model, dict):
        return None
    if isinstance(model.get("unk_id"), int):
        return int(model["unk_id"])
    token = model.get("unk_token")
    return ids.get(token) if isinstance(token, str) else None


@contextmanager
def _refusing() -> Iterator[None]:
    """An error of the library's as ours: a vocabulary that cannot spell a text, and has no way out."""
    try:
        yield
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # the library raises bare Exception
        do = "give it a token for what it does not know (`unk_token`), or choose another tokenizer"
        raise UsageError(f"the tokenizer cannot encode a text: {error}", do=do) from error


def _byte_names() -> list[str]:
    """GPT-2's printable stand-in for every byte, which byte-level vocabularies are written in."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTE_NAMES = _byte_names()


def bpe_json(
    vocabulary: dict[str, int],
    merges: Iterable[tuple[str, str]],
    *,
    special: Iterable[tuple[str, int]],
    normalizer: Any,
    pre_tokenizer: Any,
    decoder: Any,
    **model: Any,
) -> dict[str, Any]:
    """A tokenizer.json of byte-pair encoding. `special` tokens are in the vocabulary too; `model` is its rest."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": name, "special": True, **flags} for name, number in special
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            **model,
            "vocab": vocabulary,
            "merges": [list(pair) for pair in merges],
        },
    }


Token = TypeVar("Token", str, bytes)


def merges_of(ranks: Mapping[Token, int]) -> Iterator[tuple[Token, Token]]:
    """The pair that each token is made of, by rank; tokens that merging never gives have none.

    A token's pair is the same in every text: what is merged inside it, while it is not yet whole, does
    not depend on what stands beside it.
    """
    for token in sorted(ranks, key=ranks.__getitem__):
        if len(token) > 1:
            pair = _last_pair(token, ranks)
            if pair is not None:
                yield pair


def _last_pair(token: Token, ranks: Mapping[Token, int]) -> tuple[Token, Token] | None:
    """The last merge when the token alone is encoded by merging."""
    parts = [token[index : index + 1] for index in range(len(token))]
    while len(parts) > 2:
        best, at = None, 0
        for index in range(len(parts) - 1):
            rank = ranks.get(parts[index] + parts[index + 1])
            if rank is not None and (best is None or rank < best):
                best, at = rank, index
        if best is None:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
