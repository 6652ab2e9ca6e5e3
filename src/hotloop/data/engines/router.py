"""Picks the fastest engine whose ids are the reference's on a sample of the very corpus."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.data.engines.check import TRICKY, difference
from hotloop.data.engines.engine import ENGINES, REFERENCE, Engine, EngineRefused, load_engine
from hotloop.data.tokenizer import Tokenizer


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
    sample_documents: int
    tried: tuple[Tried, ...]


def route(tokenizer: Tokenizer, sample: Sequence[str], *, threads: int) -> Routing:
    """Compares on every text of the sample; times on its second half, after the first."""
    half = len(sample) // 2
    groups = [sample[:half], sample[half:], [*TRICKY, *tokenizer.special_tokens]]
    wanted, speed = _encoded(load_engine(REFERENCE, tokenizer, threads=threads), groups)
    tried = [Tried(REFERENCE, True, speed, "")]
    for name in ENGINES:
        if name == REFERENCE:
            continue
        try:
            found, speed = _encoded(load_engine(name, tokenizer, threads=threads), groups)
        except EngineRefused as error:
            tried.append(Tried(name, False, None, str(error)))
            continue
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                raise
            # An engine's panic is no reason to stop: the reference is there.
            tried.append(Tried(name, False, None, f"failed: {error}"[:160]))
            continue
        why = ""
        for texts, one, other in zip(groups, found, wanted):
            if not all(map(np.array_equal, one, other)):
                why = f"other ids: {_first_difference(tokenizer, texts, *one)}"
                break
        tried.append(Tried(name, not why, speed, why))
    size = sum(len(text.encode()) for text in sample)
    engine, why = _choice(tried) if size else (REFERENCE, "there was no text to compare on")
    return Routing(engine, why, size, len(sample), tuple(tried))


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
