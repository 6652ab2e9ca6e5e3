"""Write a corpus of any size for timing: the standard library's sources over and over, each time altered.

    python benchmarks/make_corpus.py OUT.jsonl MEGABYTES [--documents-of BYTES] [--form jsonl|text|one]

In every round every word of four letters and more that is not a keyword has, with a chance of one in
eight, two of its letters changed, by a rule drawn for the round: caches of words help as much as they
do on text that was not seen before, which is some, and caches of documents not at all. The same
arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import keyword
import random
import re
from collections.abc import Iterator
from pathlib import Path

from hotloop.data.sources import ReadOptions, Report
from hotloop.data.sources.plan import plan
from hotloop.data.sources.read import read_unit

_WORD = re.compile(r"[A-Za-z]{4,}")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Alteration:
    """What one round does to words: always the same to the same word."""

    def __init__(self, number: int) -> None:
        self._generator = random.Random(number)
        self._altered: dict[str, str] = {}

    def __call__(self, match: re.Match[str]) -> str:
        word = match.group()
        if word not in self._altered:
            self._altered[word] = self._alter(word)
        return self._altered[word]

    def _alter(self, word: str) -> str:
        if keyword.iskeyword(word) or self._generator.random() >= 1 / 8:
            return word
        letters = list(word)
        for _ in range(2):
            place = self._generator.randrange(len(letters))
            letters[place] = self._generator.choice(_LETTERS)
        return "".join(letters)


def documents(total_bytes: int, size: int) -> Iterator[str]:
    """Texts of about `size` bytes, `total_bytes` together."""
    written = round_number = 0
    options, report = ReadOptions(), Report()
    units = plan(["python-stdlib"], options).units
    texts = [document.text for unit in units for document in read_unit(unit, options, report)]
    while True:
        alteration = Alteration(round_number)
        for text in texts:
            for begin in range(0, len(text), size):
                piece = text[begin : begin + size]
                piece = _WORD.sub(alteration, piece) if round_number else piece
                yield piece
                written += len(piece.encode())
                if written >= total_bytes:
                    return
        round_number += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("megabytes", type=int)
    parser.add_argument("--documents-of", type=int, default=8000, metavar="BYTES")
    parser.add_argument("--form", choices=["jsonl", "text", "one"], default="jsonl")
    asked = parser.parse_args()
    with asked.out.open("w", encoding="utf-8") as file:
        if asked.form == "one":  # one document
            file.write('{"text": "')
        for text in documents(asked.megabytes * 1_000_000, asked.documents_of):
            if asked.form == "jsonl":
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            elif asked.form == "text":
                file.write(text + "\n\n")
            else:
                file.write(json.dumps(text, ensure_ascii=False)[1:-1])
        if asked.form == "one":
            file.write('"}\n')


if __name__ == "__main__":
    main()
