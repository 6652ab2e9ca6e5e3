"""What every engine is, and how one is asked for by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.tokenizer import Tokenizer

REFERENCE = "reference"
ENGINES = {
    REFERENCE: "hotloop.data.engines.reference",
    "words": "hotloop.data.engines.words",
    "gigatoken": "hotloop.data.engines.giga_token",
}
"""Name to module; each has `load(tokenizer, threads) -> Engine`. Ties go to the later one."""


class PlainEngine(Protocol):
    """Texts to ids, without special tokens, and without reading any text as control."""

    name: str
    batch_bytes: int
    """Text that is best given at once; memory follows it."""

    def encode(
        self, texts: Sequence[str], contents: Sequence[bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Texts and the same as UTF-8 -> all ids in a row, uint32, and ids per text, int64."""
        ...


class Engine(PlainEngine, Protocol):
    """One whose ids are the reference's for every text."""

    described: str
    """With its version, and the version of the library that defines the ids."""


class EngineRefused(Exception):
    """The engine is not installed, or cannot take this tokenizer; the message says which."""


def load_engine(name: str, tokenizer: Tokenizer, *, threads: int) -> Engine:
    """An engine by name. Raises `EngineRefused`, and `UsageError` for a name that is none."""
    if name not in ENGINES:
        raise UsageError(
            f"no such engine `{name}`", do=f"choose auto, {', '.join(ENGINES)}"
        ) from None
    engine = importlib.import_module(ENGINES[name]).load(tokenizer, threads)
    assert isinstance(engine.name, str)
    return engine  # type: ignore[no-any-return]


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]
