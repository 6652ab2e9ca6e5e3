"""Long documents in pieces that encode alone to the ids they have together.

A cut is proven where it is made: with the reference, the text around it gives the same ids whole
and in two halves, for several widths of text around it. Nothing but the neighbourhood of the cut is held.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from hotloop.core.errors import UsageError

WIDTHS = (1021, 512, 251)
"""Characters on each side of a cut that is tried."""
SEARCHED = 64 << 10
"""Characters in which a cut is looked for."""
TRIES = 200
LEAST_PIECE = 256 << 10
"""Characters below which it is not worth while to look for a cut."""
LONGEST_PIECE = 64 << 20
"""Characters held at most while no cut is found."""

Encode = Callable[[str], list[int]]

# Most likely first: a line that begins with a word, a space between words, the end of a sentence in
# a script without spaces, anything.
_CANDIDATES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<=\S\n)(?=[^\W\d_])",
        r"(?<=\w)(?= \w)",
        r"(?<=[。！？，、；.,;])(?=\w)",
        r"",
    )
)


class Pieces:
    """Takes the parts of one document and gives pieces of it."""

    def __init__(self, encode: Encode, origin: str, wanted: int) -> None:
        """Pieces of about `wanted` characters, where they can be cut there."""
        self._encode = encode
        self._origin = origin
        self._wanted = max(wanted, LEAST_PIECE)
        self._held = ""

    def take(self, text: str) -> Iterator[tuple[str, bool]]:
        """Pieces that can be encoded now that `text` has come, none of them the document's last.

        Raises `UsageError` if none ends.
        """
        self._held += text
        yield from self._whole_pieces()
        cut = last_cut(self._held, self._encode)
        if cut is not None:
            piece, self._held = self._held[:cut], self._held[cut:]
            yield piece, False
        elif len(self._held) > LONGEST_PIECE:
            raise UsageError(
                f"the tokenizer cannot encode this document in pieces: no cut in {SEARCHED} "
                "characters leaves the ids as they are",
                where=self._origin,
                do="cut the document into shorter ones, or choose another tokenizer",
            )

    def finish(self, text: str) -> Iterator[tuple[str, bool]]:
        """The pieces that are left, given the last part; the last of them marked as such."""
        self._held += text
        yield from self._whole_pieces()
        held, self._held = self._held, ""
        yield held, True

    def _whole_pieces(self) -> Iterator[tuple[str, bool]]:
        """Pieces of the wanted size from the beginning of what is held, while there is more."""
        begin = 0
        while len(self._held) - begin > self._wanted + self._wanted // 2:
            cut = last_cut(self._held[begin : begin + self._wanted], self._encode)
            if cut is None:
                break
            yield self._held[begin : begin + cut], False
            begin += cut
        self._held = self._held[begin:]


def last_cut(text: str, encode: Encode) -> int | None:
    """The last place where `text` may be cut, found in its last `SEARCHED` characters."""
    high = len(text) - WIDTHS[0]
    low = max(high - SEARCHED, WIDTHS[0])
    if high <= low:
        return None
    for pattern in _CANDIDATES:
        places = [match.start() for match in pattern.finditer(text, low, high)]
        for place in places[: -TRIES // len(_CANDIDATES) : -1]:
            if is_cut(text, place, encode):
                return place
    return None


def is_cut(text: str, place: int, encode: Encode) -> bool:
    """True when the text around `place` has the same ids whole and in two halves."""
    for width in WIDTHS:
        left, right = text[max(place - width, 0) : place], text[place : place + width]
        if encode(left + right) != encode(left) + encode(right):
            return False
    return True
