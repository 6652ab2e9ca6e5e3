"""Strings that encoders are known to take differently, and every kind of character in every other's company."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

COMMON = (" ", "\n", "a", "the", "X", "1", ".", "\u4e16", "\u0431")
SPACES = (" ", "  ", "\n", "\r\n", "\r", "\t", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\u00a0")
SPACES += ("\u1680", "\u180e", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff")
CONTRACTIONS = ("'s", "'S", "'\u017f", "'t", "'re", "'RE", "'Ve", "'ll", "'lL", "'d", "'m")
CONTRACTIONS += ("''s", "\u2019s")
FOLDING = "\u017f\u0130\u0131\u212a\u01c5\u1f88\u1e9e\u00df\u03a3\u03c2"
FOLDING += "\ufb01\ufb03\u0149\u00bd\u2167\u24b6\u2126\u00c5\u1f71"
CONTROL = tuple(
    chr(code) for code in (*range(32), *range(0x7F, 0xA0), 0xAD, 0x200B, 0x200E, 0x2060)
)
JOINED = "\u200d\ufe0f\U0001f3fb\u20e3\U0001f1e9\U0001f1ea\U000e0067\u2640"
EMOJI = "\U0001f468\U0001f469\U0001f467\u2764\U0001f3f4\U0001f9d1\u2705#1"
MARKED = ("a", "e\u0301", *"\u0915\u1100\u1161\u11a8\uac00\u0627\u05d0\u0e01")
CONTROL_NAMES = ("<|endoftext|>", "</s>", "<s>", "<unk>", "[SEP]", "[UNK]", "##s", "<0x0A>")
CONTROL_NAMES += ("<|im_end|>",)
NEXT_TO_SURROGATES = "\ud7ff\ue000\ufffd\uffff\U00010000\U0010ffff\ufdd0\u2581"


@cache
def by_category() -> dict[str, str]:
    """All characters, by general category; the unassigned ones ("Cn") as well."""
    found: dict[str, list[str]] = {}
    for code in range(sys.maxunicode + 1):
        found.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    del found["Cs"]  # half a character: UTF-8 has none
    return {name: "".join(characters) for name, characters in sorted(found.items())}


@cache
def marks() -> str:
    """All that the order of combining marks concerns, and what Unicode 12 to 16 may have made marks."""
    code_points = (*range(0x300, 0x3100), *range(0xA66F, 0xAC00), *range(0x10A00, 0x11FFF), 0x1E133)
    return "".join(
        chr(code)
        for code in (*code_points, *range(0x1E000, 0x1E950), *range(0x1D165, 0x1D245))
        if unicodedata.combining(chr(code)) or unicodedata.category(chr(code)) == "Cn"
    )


def _old_of(characters: str) -> str:
    category = unicodedata.ucd_3_2_0.category
    return "".join(character for character in characters if category(character) != "Cn")


@cache
def _old_letters(category: str) -> str:
    return _old_of(by_category()[category])


class StrangeText:
    """Strings from a seed, without an end. `real` is text to take pieces from."""

    def __init__(self, seed: int, real: str, names: tuple[str, ...] = CONTROL_NAMES) -> None:
        self._random = random.Random(seed)
        self._real = real
        self._names = names
        self._every = list(by_category().values())
        self._old = [kept for kept in map(_old_of, self._every) if kept]
        self._categories = self._every
        self._pairs = {id(pools): self._every_pair(pools) for pools in (self._every, self._old)}
        self._makers: tuple[Callable[[], str], ...] = (
            self._pair,
            self._pair,
            self._control_first,
            self._marks,
            self._emoji,
            self._spaces,
            self._run,
            self._cased,
            self._mixture,
            self._piece,
            self._torn,
        )

    def strings(self, count: int) -> list[str]:
        """Every second of them of characters that are not new."""
        found = []
        for number in range(count):
            self._categories = self._old if number % 2 else self._every
            found.append(self._random.choice(self._makers)())
        return found

    def _every_pair(self, pools: list[str]) -> Iterator[str]:
        while True:
            for first in pools:
                for second in pools:
                    yield self._random.choice(first) + self._random.choice(second)

    def _pair(self) -> str:
        """One category beside another, between common characters."""
        choice = self._random.choice
        return (
            choice(COMMON)
            + next(self._pairs[id(self._categories)])
            + choice((choice(COMMON), "'s", "", ""))
        )

    def _atom(self) -> str:
        choice = self._random.choice
        kind = self._random.randrange(12)
        if kind < 3:
            return choice(COMMON)
        if kind < 6:
            return choice(choice(self._categories))
        pools = (SPACES, CONTRACTIONS, FOLDING, MARKED, self._names, NEXT_TO_SURROGATES)
        return choice(pools[kind - 6])

    def _mixture(self) -> str:
        return "".join(self._atom() for _ in range(self._random.randint(1, 14)))

    def _control_first(self) -> str:
        """What normalizers may take away, at the start of the text."""
        choice = self._random.choice
        first = choice(CONTROL) if self._random.random() < 0.7 else choice(self._categories[0])
        return first + choice(("", " ", choice(CONTROL))) + self._piece()[:20]

    def _marks(self) -> str:
        """Combining marks in any order, also behind a space."""
        choice = self._random.choice
        found = choice(("", "a ", "x"))
        for _ in range(self._random.randint(1, 3)):
            run = "".join(choice(marks()) for _ in range(self._random.randint(1, 4)))
            found += choice((*MARKED, " ", "\n", "1")) + run
        return found + choice(("", " q", "b", "'s"))

    def _emoji(self) -> str:
        choice = self._random.choice
        parts = (choice((choice(EMOJI), choice(JOINED))) for _ in range(self._random.randint(1, 9)))
        return choice(("", " ", "a")) + "".join(parts) + choice(("", " ", "a"))

    def _spaces(self) -> str:
        choice, number = self._random.choice, self._random.randint
        words = (choice((*COMMON, "", "!", "'s")) for _ in range(number(1, 5)))
        return "".join(w + "".join(choice(SPACES) for _ in range(number(0, 6))) for w in words)

    def _run(self) -> str:
        """One character or two, many times."""
        choice, number = self._random.choice, self._random.randint
        unit = choice((" ", "\n", "\t", "0", "7", "\u0663", "a", "-", "=", "\u3000", self._atom()))
        unit += choice(("", "", choice(("\n", " ", "1"))))
        return choice(COMMON) + unit * choice((2, 3, 4, 15, 33, number(60, 300))) + choice(COMMON)

    def _cased(self) -> str:
        """Letters of every case, modifiers, marks and contractions: what o200k's pattern tells apart."""
        choice, pool = self._random.choice, by_category()
        kinds = ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me")
        found = ""
        for _ in range(self._random.randint(2, 9)):
            kind = choice((*kinds, "ascii", "fold", "'"))
            if kind == "ascii":
                found += choice("aAzZsStTlLdDmM")
            elif kind in ("fold", "'"):
                found += choice(FOLDING if kind == "fold" else CONTRACTIONS)
            else:
                kept = pool[kind] if self._categories is self._every else _old_letters(kind)
                found += choice(kept)
        return found

    def _piece(self) -> str:
        """Real text, a few characters of it."""
        begin = self._random.randrange(len(self._real))
        return self._real[begin : begin + self._random.randint(1, 60)]

    def _torn(self) -> str:
        """Real text with something strange in the middle."""
        text = self._piece()
        at = self._random.randrange(len(text) + 1)
        return text[:at] + self._atom() + text[at:]
