"""Picks the fastest engine whose ids are the reference's on a sample of the very corpus."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.data.engines.check import difference
from hotloop.data.engines.engine import ENGINES, REFERENCE, Engine, EngineRefused, load_engine
from hotloop.data.tokenizer import Tokenizer

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
"""Texts on which encoders are known to differ, encoded besides the sample."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one engine."""

    engine: str
    identical: bool
    bytes_per_cpu_s: float | None
    """On part of the sample, per second of CPU time: what else runs here shall not decide. `None` if it
    was not timed."""
    why: str
    """Why it cannot be used, or empty."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Which engine encodes, and what came of each."""

    engine: str
    why: str
    """Of the choice, in a few words."""
    sample_bytes: int
    sample_documents: int
    tried: tuple[Tried, ...]


def route(tokenizer: Tokenizer, sample: Sequence[str], *, threads: int) -> tuple[Routing, Engine]:
    """Compares on every text of the sample; times on its second half, after the first."""
    reference = load_engine(REFERENCE, tokenizer, threads=threads)
    texts = list(sample)
    contents = [text.encode() for text in texts]
    half = len(texts) // 2
    timed_bytes = sum(map(len, contents[half:]))
    first = reference.encode(texts[:half], contents[:half])
    started = time.process_time()
    second = reference.encode(texts[half:], contents[half:])
    speed = timed_bytes / max(time.process_time() - started, 1e-9)
    tricky = [*TRICKY, *(token for token in tokenizer.special_tokens)]
    third = reference.encode(tricky, [text.encode() for text in tricky])
    tried = [Tried(REFERENCE, True, speed, "")]
    engines: dict[str, Engine] = {REFERENCE: reference}
    for name in ENGINES:
        if name == REFERENCE:
            continue
        try:
            engine = load_engine(name, tokenizer, threads=threads)
            halves = [engine.encode(texts[:half], contents[:half])]
            started = time.process_time()
            halves.append(engine.encode(texts[half:], contents[half:]))
            speed = timed_bytes / max(time.process_time() - started, 1e-9)
            halves.append(engine.encode(tricky, [text.encode() for text in tricky]))
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
        for (ids, lengths), (wanted, wanted_lengths), given in zip(
            halves, (first, second, third), (texts[:half], texts[half:], tricky)
        ):
            if not (np.array_equal(ids, wanted) and np.array_equal(lengths, wanted_lengths)):
                why = f"other ids: {_first_difference(tokenizer, given, ids, lengths)}"
                break
        tried.append(Tried(name, not why, speed, why))
        engines[name] = engine
    routing = _choice(tried, sum(map(len, contents)), len(texts))
    return routing, engines[routing.engine]


def merged(routings: Sequence[Routing]) -> Routing:
    """The choice by all of a sample whose parts were compared apart, by the same engines."""
    tried = []
    for parts in zip(*(routing.tried for routing in routings)):
        # Seconds add up, not speeds; parts are weighed by their text, of which one may have none.
        timed = [
            (routing.sample_bytes, part.bytes_per_cpu_s)
            for routing, part in zip(routings, parts)
            if part.bytes_per_cpu_s
        ]
        seconds = sum(size / speed for size, speed in timed)
        tried.append(
            Tried(
                parts[0].engine,
                all(part.identical for part in parts),
                sum(size for size, _ in timed) / seconds if seconds else None,
                next((part.why for part in parts if part.why), ""),
            )
        )
    return _choice(
        tried,
        sum(routing.sample_bytes for routing in routings),
        sum(routing.sample_documents for routing in routings),
    )


def _choice(tried: Sequence[Tried], sample_bytes: int, sample_documents: int) -> Routing:
    """The fastest of those with the reference's ids; on a tie the later one."""
    if not sample_bytes:
        return Routing(REFERENCE, "there was no text to compare on", 0, 0, tuple(tried))
    usable = [entry for entry in tried if entry.identical]
    best = max(reversed(usable), key=lambda entry: entry.bytes_per_cpu_s or 0.0).engine
    others = [entry for entry in tried if entry.engine != REFERENCE]
    if best != REFERENCE:
        why = "the fastest with the reference's ids"
    elif any(entry.identical for entry in others):
        why = "no other was faster"
    else:
        why = "; ".join(f"{entry.engine} {entry.why}" for entry in others)
    return Routing(best, why, sample_bytes, sample_documents, tuple(tried))


def _first_difference(
    tokenizer: Tokenizer, texts: Sequence[str], ids: np.ndarray, lengths: np.ndarray
) -> str:
    ends = np.cumsum(lengths)
    for index, text in enumerate(texts[: len(ends)]):
        begin = int(ends[index - 1]) if index else 0
        found = difference(tokenizer, text, ids[begin : int(ends[index])])
        if found is not None:
            return str(found)
    return "another number of encodings"
