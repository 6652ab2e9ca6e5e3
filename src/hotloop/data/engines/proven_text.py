"""The texts that an engine may be given: those on which it is proven to agree with the reference.

Libraries differ where their versions of Unicode do: in what is a letter, in the order of combining marks.
Characters that old versions of Unicode have already are the same in all of them, but for those that were
given another category since; `benchmarks/fuzz_engines.py` compares each character beside its neighbours.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

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


_ASCII = bytes(range(128))


def of_old_characters(text: str, content: bytes) -> bool:
    """True when every version of Unicode that libraries have knows all characters of the text."""
    if text.isascii():
        return True
    if 5 * len(content) < 6 * len(text):
        # Most of it is ASCII, which is left out at a fifth of what looking at it costs.
        text = content.translate(None, _ASCII).decode()
    return _unproven_character().search(text) is None


def is_composed(text: str) -> bool:
    """True when NFC leaves the text as it is, in every version of Unicode.

    Unicode promises it of characters that were assigned in the version asked.
    """
    return text.isascii() or unicodedata.is_normalized("NFC", text)
