"""The interface of engines, the reference, loading by name; the fastest that gives the reference's ids is picked, and spot-checked."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

import numpy as np

from hotloop.core.errors import UsageError, not_installed
from hotloop.core.progress import Progress, silent
from hotloop.data.gather import engine_sample
from hotloop.data.sources import ReadOptions, Unit
from hotloop.data.tiktoken_encoding import PREFIX, Tiktoken
from hotloop.data.tokenizer import Tokenizer

AUTO = "auto"
"""The fastest engine whose ids are the reference's on the corpus."""
REFERENCE = "reference"
ENGINES = {
    REFERENCE: "hotloop.data.engines",
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


TRICKY = (
    "",
    " ",
    "\n",
    " \n \n\t ",
    "\r\n\r\n",
    "don't DON'T we'll 's 'S",
    "x" * 3000,
    "ab " * 1000,
    " " * 700 + "x",
    "0123456789 3.14159 1,000,000 \u0661\u0662\u0663 \u00bd \u2167",
    "\u00e9 e\u0301 \u00c5 A\u030a \ufb01 \u01c6",
    "\u4e16\u754c\u3053\u3093\u306b\u3061\u306f\u3002\ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\U0001f389\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u00a0\u2003\u200b\u200d\u2028\ufeff\u3000",
    "\x00\x01\x7f\x85",
    "<|endoftext|> a<|endoftext|>b </s> [SEP] <s>",
)
"""Texts on which encoders are known to differ, encoded besides a sample."""
CHECKED_CHARS = 64 << 10
"""Most characters of a spot-checked document that are encoded, unless its ids differ."""
FIRST_CHECKED_CHARS = 4 << 10
"""The same for the first document of every job: the reference takes a millisecond for them."""
_MARGIN = 128
"""Ids at the cut end of a text, which may differ from those of the whole."""


class EngineDiffers(UsageError):
    """An engine gave other ids than the reference: nothing it made may be kept."""


def difference(
    tokenizer: Tokenizer, text: str, ids: np.ndarray, *, chars: int = CHECKED_CHARS
) -> str | None:
    """The first place where the `ids` (uint32) of a text are not the reference's, in words."""
    head = text[:chars]
    expected = np.asarray(tokenizer.encode(head), dtype=np.uint32)
    if len(head) < len(text):
        safe = max(len(expected) - _MARGIN, 0)
        if np.array_equal(expected[:safe], ids[:safe]):
            return None
        expected = np.asarray(tokenizer.encode(text), dtype=np.uint32)
    if np.array_equal(expected, ids):
        return None
    both = min(len(expected), len(ids))
    wrong = np.flatnonzero(expected[:both] != ids[:both])
    at = int(wrong[0]) if len(wrong) else both
    begin = len(tokenizer.decode(expected[:at]))
    return (
        f"from token {at} on, near {text[max(begin - 20, 0) : begin + 40]!r}: "
        f"{expected[at : at + 6].tolist()} instead of {ids[at : at + 6].tolist()}"
    )


class SpotChecks:
    """Encodes a share of the documents with the reference as well, chosen by their content."""

    def __init__(self, tokenizer: Tokenizer, engine: str, one_in: int) -> None:
        self._tokenizer = tokenizer
        self._engine = engine
        self._below = 2**64 // one_in
        self._first = True

    def __call__(
        self,
        keys: np.ndarray,
        texts: Sequence[str],
        origins: Sequence[str],
        ids: np.ndarray,
        ends: np.ndarray,
    ) -> None:
        """`keys` (n,) uint64; `ends` (n,) of the texts in `ids`. Raises `EngineDiffers`."""
        chosen = [
            (index, CHECKED_CHARS)
            for index in np.flatnonzero(keys < np.uint64(self._below)).tolist()
        ]
        if self._first and texts:
            self._first = False
            chosen.append((0, FIRST_CHECKED_CHARS))
        for index, chars in chosen:
            begin = int(ends[index - 1]) if index else 0
            part = ids[begin : int(ends[index])]
            found = difference(self._tokenizer, texts[index], part, chars=chars)
            if found is not None:
                raise EngineDiffers(
                    f"{self._engine} gives other ids than the reference {found}",
                    where=origins[index],
                    do="nothing it made is kept; run it again with another --engine: reference is "
                    "always right",
                )


def check_conversion(
    tokenizer: Tokenizer,
    units: Sequence[Unit],
    reading: ReadOptions,
    *,
    progress: Progress = silent,
) -> None:
    """Compares the tokenizer.json made of a tiktoken encoding with tiktoken, on a sample of the units.

    Other tokenizers are read by the library that defines them. Raises `UsageError` with the first
    text that differs.
    """
    library = tokenizer.library
    if not isinstance(library, Tiktoken):
        return
    where = f"tokenizer {PREFIX}{library.name}"
    if not library.is_installed:
        what = "the ids cannot be compared with tiktoken's: it is not installed"
        raise not_installed("tiktoken", what, where=where)
    progress("comparing the tokenizer with tiktoken", 0, None, library.name)
    for texts in (engine_sample(units, reading), TRICKY, tokenizer.special_tokens):
        for text in texts:
            ids = np.asarray(library.converted(text), dtype=np.uint32)
            found = difference(tokenizer, text, ids, chars=len(text))
            if found is not None:
                raise UsageError(
                    f"the tokenizer.json made of the encoding gives other ids than tiktoken {found}",
                    where=where,
                    do="other programs would read the prepared text wrongly: use a tokenizer.json "
                    "from its makers, or report this text",
                )


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of one engine."""

    engine: str
    identical: bool
    bytes_per_cpu_s: float | None
    """On part of the sample, per second of CPU time, which other programs on the machine do not change.
    `None` if it was not timed."""
    why: str
    """Why it cannot be used, or empty."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The engine that encodes, and the result of each."""

    engine: str
    why: str
    """Reason of the choice, in a few words."""
    sample_bytes: int
    tried: tuple[Tried, ...]


def route(tokenizer: Tokenizer, sample: Sequence[str], *, threads: int) -> Routing:
    """Compares on every text of the sample; times on its second half, after the first."""
    half = len(sample) // 2
    groups = [sample[:half], sample[half:], [*TRICKY, *tokenizer.special_tokens]]
    wanted, speed = _encoded(load_engine(REFERENCE, tokenizer, threads=threads), groups)
    tried = [Tried(REFERENCE, True, speed, "")]
    tried += [
        _compared(name, tokenizer, groups, wanted, threads) for name in ENGINES if name != REFERENCE
    ]
    size = sum(len(text.encode()) for text in sample)
    engine, why = _choice(tried) if size else (REFERENCE, "there was no text to compare on")
    return Routing(engine, why, size, tuple(tried))


def _compared(
    name: str,
    tokenizer: Tokenizer,
    groups: Sequence[Sequence[str]],
    wanted: Sequence[tuple[np.ndarray, np.ndarray]],
    threads: int,
) -> Tried:
    try:
        found, speed = _encoded(load_engine(name, tokenizer, threads=threads), groups)
    except EngineRefused as error:
        return Tried(name, False, None, str(error))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001  an engine's panic: the reference is there
        return Tried(name, False, None, f"failed: {error}"[:160])
    for texts, one, other in zip(groups, found, wanted):
        if not all(map(np.array_equal, one, other)):
            why = f"other ids: {_first_difference(tokenizer, texts, *one)}"
            return Tried(name, False, speed, why)
    return Tried(name, True, speed, "")


def _encoded(
    engine: Engine, groups: Sequence[Sequence[str]]
) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
    """Ids and lengths of each group of texts, and bytes per CPU second of the second group."""
    contents = [[text.encode() for text in texts] for texts in groups]
    found, seconds = [], []
    for texts, content in zip(groups, contents):
        started = time.process_time()
        found.append(engine.encode(texts, content))
        seconds.append(max(time.process_time() - started, 1e-9))
    return found, sum(map(len, contents[1])) / seconds[1]


def _choice(tried: Sequence[Tried]) -> tuple[str, str]:
    """The fastest of those with the reference's ids (on a tie the later one), and why."""
    usable = [entry for entry in tried if entry.identical]
    best = max(reversed(usable), key=lambda entry: entry.bytes_per_cpu_s or 0.0).engine
    others = [entry for entry in tried if entry.engine != REFERENCE]
    if best != REFERENCE:
        return best, "the fastest with the reference's ids"
    if any(entry.identical for entry in others):
        return best, "no other was faster"
    return best, "; ".join(f"{entry.engine} {entry.why}" for entry in others)


def _first_difference(
    tokenizer: Tokenizer, texts: Sequence[str], ids: np.ndarray, lengths: np.ndarray
) -> str:
    ends = np.cumsum(lengths)
    for index, text in enumerate(texts[: len(ends)]):
        begin = int(ends[index - 1]) if index else 0
        found = difference(tokenizer, text, ids[begin : int(ends[index])])
        if found is not None:
            return found
    return "another number of encodings"
