"""Where a long text may be cut."""

from __future__ import annotations

import re

_LINE_BEFORE_WORD = re.compile(rb"(?<=[!-~])\n(?=[A-Za-z])")
_SPACE_BETWEEN_WORDS = re.compile(rb"(?<=[A-Za-z]) (?=[A-Za-z])")
_SEARCHED = 64 << 10


def piece_cut(text: bytes, begin: int, end: int) -> int:
    """Where to end a piece that begins at `begin` and must end inside `text[:end]`.

    After a blank line in the second half, else after the last line, else between characters.
    """
    blank = text.rfind(b"\n\n", begin + (end - begin) // 2, end)
    if blank >= 0:
        return blank + 2
    line = text.rfind(b"\n", begin, end)
    if line >= 0:
        return line + 1
    return begin + character_cut(text[begin:end])


def part_cut(block: bytes) -> int:
    """Where to cut a document inside `block`, which goes on after it: after 1 byte or more.

    Where both sides encode alone as they do together, for the tokenizers in use: between a single
    line end and a word, else before a single space between words. Text without either in its last
    64 KiB (Chinese, long runs of symbols) is cut between characters, which may move a token.
    """
    low = max(len(block) - _SEARCHED, 1)
    tail = block[low - 1 :]
    for pattern, after in ((_LINE_BEFORE_WORD, 1), (_SPACE_BETWEEN_WORDS, 0)):
        found = None
        for found in pattern.finditer(tail):  # noqa: B007  (the last one is wanted)
            pass
        if found is not None:
            return low - 1 + found.start() + after
    return character_cut(block)


def character_cut(block: bytes) -> int:
    """The last place in `block` where a character begins, but not 0: a character may be cut there."""
    for cut in range(len(block) - 1, max(len(block) - 4, 0), -1):
        if block[cut] & 0xC0 != 0x80:
            return cut
    return len(block)
