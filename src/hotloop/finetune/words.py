"""Texts that are given as words: their token ids, and which word each token is of."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from hotloop.finetune.examples import Examples
from hotloop.finetune.tokens import Tokens, beside_json, cached, check_read, encoded

NO_WORD = -1
"""Of a special token."""


def tokenized_words(
    tokenizer: Any, identity: str, examples: Examples, max_tokens: int
) -> tuple[Tokens, Tokens]:
    """ids and words of the tokens of each example, int32. From the cache where these were tokenized before. Raises `UsageError`."""
    digest = hashlib.sha256(
        f"counted words {identity} {max_tokens}{beside_json(tokenizer)} ".encode()
    )
    for words in examples.texts:
        digest.update(b"%d " % len(words))
        for word in words:  # which may be empty, and have any character in it
            own = word.encode("utf-8", "surrogatepass")
            digest.update(b"%d %b" % (len(own), own))
    both = cached(
        digest.hexdigest()[:32],
        len(examples),
        lambda: [
            np.concatenate(each)
            for each in zip(*encode_words(tokenizer, examples.texts, max_tokens), strict=True)
        ],
    )
    halves = [np.split(each, 2) for each in both]
    check_read([ids for ids, _ in halves], examples)
    return [ids for ids, _ in halves], [words for _, words in halves]


def encode_words(tokenizer: Any, texts: Any, max_tokens: int) -> tuple[Tokens, Tokens]:
    pieces = [list(words) for words in texts]
    tokens, found = encoded(tokenizer, pieces, max_tokens, is_split_into_words=True)
    words = [
        np.asarray(
            [NO_WORD if each is None else each for each in found.word_ids(n)], dtype=np.int32
        )
        for n in range(len(tokens))
    ]
    return tokens, words
