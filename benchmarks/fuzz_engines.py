"""gigatoken against the reference, on strings made to go wrong, for every kind of tokenizer that it takes.

    python benchmarks/fuzz_engines.py --minutes 60 [--seed 1] [--kind o200k]
    python benchmarks/fuzz_engines.py --every-character

Prints how many strings were tried for each kind, and how many of them gigatoken encoded
itself (the others go to the reference, as in `hotloop prepare`). Exit code 1 at a difference.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
from strange_text import StrangeText
from tokenizer_kinds import KINDS, REAL

from hotloop.data.engines import Reference, flat, load_engine
from hotloop.data.engines.giga_token import GigaToken, of_old_characters
from hotloop.data.tokenizer import Tokenizer

BATCH = 5000
BESIDE = (*"az\u00e9\u0436\u03b1\u01c6", *"AZ\u00c9\u0416\u0394\u01c5", "\u4e16", "1", " ", ".")
"""Neighbours of several kinds and several first and last bytes: where a text is cut shows in the ids only
if a merge of the vocabulary crosses the cut."""


@dataclass(slots=True)
class Tried:
    """The result of one kind of tokenizer."""

    strings: int = 0
    own: int = 0
    """Encoded by gigatoken itself."""
    differ: int = 0
    example: str = ""


class Remembered(Reference):
    """The reference's ids of the last batch, which `GigaToken` asks for again where it gives texts away."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._known: dict[str, list[int]] = {}

    def learn(self, texts: list[str]) -> list[list[int]]:
        found = super().rows(texts)
        self._known = dict(zip(texts, found))
        return found

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._known[text] for text in texts]


@cache
def made(kind: str) -> Tokenizer:
    """Each takes a second."""
    return KINDS[kind]()


class Comparison:
    """One kind of tokenizer, read by gigatoken and by the reference."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._reference = Remembered(tokenizer)
        loaded = load_engine("gigatoken", tokenizer, threads=1)
        assert isinstance(loaded, GigaToken)
        loaded._reference = self._reference
        self._engine = loaded
        self.tried = Tried()

    def compare(self, texts: list[str]) -> None:
        expected, expected_lengths = flat(self._reference.learn(texts))
        contents = [text.encode() for text in texts]
        given_away = self._engine.given_away
        ids, lengths = self._engine.encode(texts, contents)
        self.tried.strings += len(texts)
        self.tried.own += len(texts) - (self._engine.given_away - given_away)
        if np.array_equal(ids, expected) and np.array_equal(lengths, expected_lengths):
            return
        assert len(lengths) == len(texts)
        found = np.split(ids, np.cumsum(lengths)[:-1])
        right = np.split(expected, np.cumsum(expected_lengths)[:-1])
        for text, one, other in zip(texts, found, right):
            if not np.array_equal(one, other):
                self.tried.differ += 1
                if not self.tried.example or len(text) < len(self.tried.example):
                    self.tried.example = text


def every_character(one_in: int) -> Iterator[str]:
    """Each character that gigatoken is given beside each neighbour; of ideographs and syllables one in 40."""
    for code in range(0, 0x30000, one_in):
        many = 0x3400 <= code < 0xA000 or 0xAC00 <= code < 0xD800 or code >= 0x20000
        if 0xD800 <= code < 0xE000 or (many and code % 40):
            continue
        character = chr(code)
        if of_old_characters(character, character.encode()):
            yield from (beside + character for beside in BESIDE)
            yield from (f"{character}{beside}b" for beside in BESIDE)


def compare_every_character(kind: str, one_in: int = 1) -> Tried:
    """One kind on `every_character`, or on one in so many of them."""
    comparison = Comparison(made(kind))
    strings = every_character(one_in)
    while batch := list(islice(strings, BATCH)):
        comparison.compare(batch)
    return comparison.tried


def fuzz(kinds: list[str], seed: int, strings: int, seconds: float = 0.0) -> dict[str, Tried]:
    """Tries so many strings with each kind, and again with other ones until the time is over."""
    compared = {kind: Comparison(made(kind)) for kind in kinds}
    names = {name for kind in kinds for name in made(kind).special_tokens}
    source = StrangeText(seed, REAL, tuple(sorted({*names, "<s>", "##s", "<0x0A>"})))
    end = time.monotonic() + seconds
    while strings > 0 or time.monotonic() < end:
        texts = source.strings(min(BATCH, strings) if strings > 0 else BATCH)
        for comparison in compared.values():
            comparison.compare(texts)
        strings -= BATCH
    return {kind: comparison.tried for kind, comparison in compared.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--strings", type=int, default=100_000, help="for each kind, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--every-character", action="store_true", help="instead of random strings")
    asked = parser.parse_args()
    kinds = asked.kind or list(KINDS)
    if asked.every_character:
        found = {kind: compare_every_character(kind) for kind in kinds}
    else:
        found = fuzz(kinds, asked.seed, asked.strings, 60 * asked.minutes)
    print(f"seed {asked.seed}\n{'kind':<28} {'strings':>10} {'its own':>10} {'differ':>7}")
    for kind, tried in found.items():
        print(
            f"{kind:<28} {tried.strings:>10} {tried.own:>10} {tried.differ:>7}"
            + (f"  {tried.example!a}" if tried.differ else "")
        )
    return int(any(tried.differ for tried in found.values()))


if __name__ == "__main__":
    sys.exit(main())
