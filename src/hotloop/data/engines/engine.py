"""The interface of engines, the reference, and loading by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Protocol

import numpy as np

from hotloop.data.tokenizer import Tokenizer

AUTO = "auto"
"""The fastest engine whose ids are the reference's on the corpus."""
REFERENCE = "reference"
ENGINES = {
    REFERENCE: "hotloop.data.engines.engine",
    "gigatoken": "hotloop.data.engines.giga_token",
}
"""Name to module; each has `load(tokenizer, threads) -> Engine`. Ties go to the later one."""


class Engine(Protocol):
    """Texts to ids, without special tokens, and without reading any text as control."""

    name: str
    batch_bytes: int
    """Text that is best given at once; memory follows it."""
    described: str
    """With its version, and the version of the library that defines the ids."""

    def encode(
        self, texts: Sequence[str], contents: Sequence[bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Texts and the same as UTF-8 -> all ids in a row, uint32, and ids per text, int64."""
        ...


class Reference:
    """The library that defines a tokenizer (`tokenizers`, tiktoken, sentencepiece): its ids are right."""

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


def load(tokenizer: Tokenizer, threads: int) -> Reference:
    return Reference(tokenizer, threads)


def flat(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ids -> all of them in a row, uint32, and how many each had, int64."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    ids = np.empty(int(lengths.sum()), dtype=np.uint32)
    at = 0
    for row in rows:
        ids[at : at + len(row)] = row
        at += len(row)
    return ids, lengths


class EngineRefused(Exception):
    """The engine is not installed, or cannot take this tokenizer; the message says which."""


def load_engine(name: str, tokenizer: Tokenizer, *, threads: int) -> Engine:
    """One of `ENGINES`. Raises `EngineRefused`."""
    engine: Engine = importlib.import_module(ENGINES[name]).load(tokenizer, threads)
    return engine
