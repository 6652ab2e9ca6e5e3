"""Whether an engine's ids are the reference's, and what is said when they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.data.tokenizer import Tokenizer

CHECKED_CHARS = 64 << 10
"""Of one document, unless its ids differ."""
FIRST_CHECKED_CHARS = 4 << 10
"""Of the first document of every job: the reference takes a millisecond for so many."""
_MARGIN = 128
"""Ids at the cut end of a text, which may differ from those of the whole."""


class EngineDiffers(UsageError):
    """An engine gave other ids than the reference: nothing it made may be kept."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two encodings of one text part."""

    index: int
    text: str
    """Around the place."""
    expected: tuple[int, ...]
    found: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"from token {self.index} on, near {self.text!r}: "
            f"{list(self.expected)} instead of {list(self.found)}"
        )


def difference(
    tokenizer: Tokenizer, text: str, ids: np.ndarray, *, chars: int = CHECKED_CHARS
) -> Difference | None:
    """Where the `ids` (uint32) of a text are not the reference's, if they are not."""
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
    return Difference(
        index=at,
        text=text[max(begin - 20, 0) : begin + 40],
        expected=tuple(expected[at : at + 6].tolist()),
        found=tuple(ids[at : at + 6].tolist()),
    )


class SpotChecks:
    """Encodes a share of the documents with the reference as well, chosen by their content."""

    def __init__(self, tokenizer: Tokenizer, engine: str, one_in: int) -> None:
        self._tokenizer = tokenizer
        self._engine = engine
        self._below = 2**64 // one_in
        self._first = True
        self.checked = 0

    def __call__(
        self,
        keys: np.ndarray,
        texts: Sequence[str],
        origins: Sequence[str],
        ids: np.ndarray,
        ends: np.ndarray,
    ) -> None:
        """`keys` (n,) uint64; `ends` (n,) of the texts in `ids`. Raises `UsageError` at a difference."""
        chosen = np.flatnonzero(keys < np.uint64(self._below)).tolist()
        if self._first and texts:
            self._first = False
            chosen.append(-1)
        for chance in chosen:
            index, chars = (0, FIRST_CHECKED_CHARS) if chance < 0 else (chance, CHECKED_CHARS)
            begin = int(ends[index - 1]) if index else 0
            part = ids[begin : int(ends[index])]
            found = difference(self._tokenizer, texts[index], part, chars=chars)
            self.checked += 1
            if found is not None:
                raise EngineDiffers(
                    f"{self._engine} gives other ids than the reference {found}",
                    where=origins[index],
                    do="nothing it made is kept; run it again with another --engine: reference is "
                    "always right",
                )
