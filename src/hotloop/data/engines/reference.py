"""The library that defines a tokenizer (`tokenizers`, tiktoken, sentencepiece): what it says is right."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np

from hotloop.data.engines.engine import REFERENCE
from hotloop.data.tokenizer import Tokenizer


class Reference:
    """Any tokenizer."""

    name = REFERENCE
    # An encoding takes about a hundred times the memory of its ids.
    batch_bytes = 1 << 20

    def __init__(self, tokenizer: Tokenizer, threads: int = 1) -> None:
        package = tokenizer.library.package
        self.described = f"{package} {version(package)}"
        self._tokenizer = tokenizer
        self._threads = threads

    def encode(
        self, texts: Sequence[str], contents: Sequence[bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        return flat(self.rows(texts))

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return self._tokenizer.encode_batch(texts, threads=self._threads)


def flat(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ids -> all of them in a row, uint32, and how many each had, int64."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    ids = np.empty(int(lengths.sum()), dtype=np.uint32)
    at = 0
    for row in rows:
        ids[at : at + len(row)] = row
        at += len(row)
    return ids, lengths


def load(tokenizer: Tokenizer, threads: int) -> Reference:
    return Reference(tokenizer, threads)
