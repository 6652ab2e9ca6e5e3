"""Comparisons of ids with those of the library that defines them, and the errors at a difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.progress import Progress, silent
from hotloop.data.sample import engine_sample
from hotloop.data.sources.unit import ReadOptions, Unit
from hotloop.data.tiktoken_encoding import INSTALL, PREFIX, Tiktoken
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
        raise UsageError(
            "the ids cannot be compared with tiktoken's: it is not installed",
            where=where,
            do=INSTALL,
        )
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
