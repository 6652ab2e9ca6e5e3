"""Which texts an engine may be given: those on which it is proven to agree with the reference.

Libraries differ where their versions of Unicode do: in what is a letter, in the order of combining marks.
Characters that old versions of Unicode have already are the same in all of them, but for those that were
given another category since; `benchmarks/fuzz_engines.py` compares each character beside its neighbours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from hotloop.data.engines.engine import PlainEngine
from hotloop.data.engines.reference import Reference

_SINCE_3_2 = (
    (0x180, 0x24F),  # Latin
    (0x400, 0x52F),  # Cyrillic
    (0x900, 0x97F),  # Devanagari
    (0x1E00, 0x1EFF),  # Latin
    (0x20A0, 0x20BF),  # currencies
    (0x2190, 0x23FF),  # arrows, mathematics, technical
    (0x2600, 0x27BF),  # symbols
    (0x2B00, 0x2B59),
    (0x1F1E6, 0x1F1FF),  # flags
    (0x1F300, 0x1F64F),  # emoji
    (0x1F680, 0x1F6C5),
    (0x1F910, 0x1F93A),
)
"""Ranges without a gap since Unicode 10, in use everywhere, beside what Unicode 3.2 has."""
_RECLASSIFIED = (0x295,)
"""A lowercase letter that became one without case after Unicode 15: o200k's pattern cuts there."""
_LAST = 0x2A6D6
"""The last ideograph of Unicode 3.2; what is behind it is for the reference."""


@cache
def _unproven_character() -> re.Pattern[str]:
    """Finds a character that is not in Unicode 3.2 (of 2002, in every Python), nor in the ranges above."""
    category = unicodedata.ucd_3_2_0.category
    proven = {code for code in range(_LAST + 1) if category(chr(code)) != "Cn"}
    for first, last in _SINCE_3_2:
        proven.update(range(first, last + 1))
    proven.difference_update(_RECLASSIFIED)
    ranges: list[list[int]] = []
    for code in sorted(proven):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return re.compile("[^" + "".join(rf"\U{a:08x}-\U{b:08x}" for a, b in ranges) + "]")


Proven = Callable[[str, bytes], bool]
"""Of a text and the same as UTF-8."""
_ASCII = bytes(range(128))


def of_old_characters(text: str, content: bytes) -> bool:
    """Whether every version of Unicode that libraries have knows all characters of the text."""
    if text.isascii():
        return True
    if 5 * len(content) < 6 * len(text):
        # Most of it is ASCII, which is left out at a fifth of what looking at it costs.
        text = content.translate(None, _ASCII).decode()
    return _unproven_character().search(text) is None


def is_composed(text: str) -> bool:
    """Whether NFC leaves the text as it is, in every version of Unicode.

    Unicode promises it of characters that were assigned in the version asked.
    """
    return text.isascii() or unicodedata.is_normalized("NFC", text)


class Guarded:
    """An engine for the texts that it is proven for; the reference for the others, one by one."""

    def __init__(
        self, engine: PlainEngine, reference: Reference, proven: Proven, *, version: str
    ) -> None:
        self.name = engine.name
        self.described = f"{engine.name} {version}, else {reference.described}"
        self.batch_bytes = engine.batch_bytes
        self.engine = engine
        self._reference = reference
        self._proven = proven
        self.given_away = 0
        """Texts that the reference encoded."""

    def encode(
        self, texts: Sequence[str], contents: Sequence[bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        proven = map(self._proven, texts, contents)
        away = [index for index, is_proven in enumerate(proven) if not is_proven]
        if not away:
            return self.engine.encode(texts, contents)
        self.given_away += len(away)
        rows: list[np.ndarray] = [np.empty(0, dtype=np.uint32)] * len(texts)
        others = set(away)
        own = [index for index in range(len(texts)) if index not in others]
        if own:
            ids, lengths = self.engine.encode(
                [texts[index] for index in own], [contents[index] for index in own]
            )
            for index, row in zip(own, np.split(ids, np.cumsum(lengths)[:-1])):
                rows[index] = row
        for group in _groups(away, contents, self._reference.batch_bytes):
            found = self._reference.rows([texts[index] for index in group])
            for index, row_ids in zip(group, found):
                rows[index] = np.asarray(row_ids, dtype=np.uint32)
        return np.concatenate(rows), np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))


def _groups(indices: list[int], contents: Sequence[bytes], size: int) -> list[list[int]]:
    """Runs of texts of about `size` bytes: the reference's memory follows what it is given at once."""
    groups: list[list[int]] = [[]]
    held = 0
    for index in indices:
        if held > size:
            groups.append([])
            held = 0
        groups[-1].append(index)
        held += len(contents[index])
    return groups
