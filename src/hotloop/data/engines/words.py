"""The reference's own ids of each word, kept: for WordPiece and Unigram, which others do not take.

Right where words are encoded apart from each other, which is so after two kinds of pre-tokenizers:
those that cut at white space and punctuation (BERT's), and the metaspace (sentencepiece's). It refuses
any other. Only words that were not seen before are given to the library.
"""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hotloop
from hotloop.data.engines.engine import EngineRefused
from hotloop.data.engines.giga_token import steps_of
from hotloop.data.engines.proven_text import Guarded, of_old_characters
from hotloop.data.engines.reference import Reference
from hotloop.data.tokenizer import Tokenizer
from hotloop.data.tokenizer_library import Tokenizers

KEPT_BYTES = 128 << 20
"""Of words and their ids, about; then it begins anew."""
_ENTRY_BYTES = 200


@dataclass(frozen=True, slots=True)
class Manner:
    """How a kind of tokenizer takes words."""

    split: Callable[[str], list[str]]
    rows: Callable[[list[str]], list[list[int]]]
    """The ids of each of some words."""


class Words:
    name = "words"
    batch_bytes = 1 << 20

    def __init__(self, manner: Manner) -> None:
        self._manner = manner
        self._known: dict[str, bytes] = {}
        self._kept = 0

    def encode(
        self, texts: Sequence[str], contents: Sequence[bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        if self._kept > KEPT_BYTES:
            self._known.clear()
            self._kept = 0
        cut = [self._manner.split(text) for text in texts]
        new = list(set().union(*cut).difference(self._known))
        for word, ids in zip(new, self._manner.rows(new)):
            found = array("I", ids).tobytes()
            self._known[word] = found
            self._kept += _ENTRY_BYTES + 2 * len(word) + len(found)
        encoded = [b"".join(map(self._known.__getitem__, words)) for words in cut]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)) // 4
        return np.frombuffer(b"".join(encoded), dtype=np.uint32), lengths


def load(tokenizer: Tokenizer, threads: int) -> Guarded:
    if not isinstance(tokenizer.library, Tokenizers):
        raise EngineRefused("takes what the `tokenizers` library defines only")
    values = json.loads(tokenizer.to_json())
    if any(not token.get("special") for token in values.get("added_tokens") or []):
        raise EngineRefused("has added tokens, which may reach over words")
    if values["model"].get("dropout"):
        raise EngineRefused("drops merges at random")
    reference = Reference(tokenizer, threads)
    normalizers = steps_of(values.get("normalizer"), "normalizers")
    splitters = steps_of(values.get("pre_tokenizer"), "pretokenizers")
    kinds = [str(step.get("type")) for step in splitters]
    if kinds == ["Metaspace"] and splitters[0].get("split", True):
        if splitters[0].get("prepend_scheme") == "first" and normalizers:
            # It looks for the text's first character, which a normalizer may have taken away.
            raise EngineRefused("its metaspace begins the text as it was before it was normalized")
        manner = _metaspace(tokenizer.library, splitters[0])
    elif kinds[:1] in ([kind] for kind in _WHITE_SPACE):
        _refuse_beyond_words(normalizers, splitters[1:])
        apart = kinds[0] != "WhitespaceSplit" or "Punctuation" in kinds
        manner = Manner(_at_punctuation if apart else _at_white_space, reference.rows)
    else:
        raise EngineRefused(
            f"its pre-tokenizer ({', '.join(kinds) or 'none'}) may look beyond a word"
        )
    return Guarded(Words(manner), reference, _proven, version=hotloop.__version__)


_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f]")


def _proven(text: str, content: bytes) -> bool:
    """Text of old characters, without those that normalizers take away."""
    content = content.translate(None, _PLAIN)
    others = content.decode()
    return _CONTROL.search(others) is None and of_old_characters(others, content)


# Sentencepiece's way: normalized by the library as one text, cut here, each piece to the model.


def _metaspace(library: Tokenizers, step: dict[str, Any]) -> Manner:
    normalizer, model = library.tokenizer.normalizer, library.tokenizer.model
    space = str(step.get("replacement", "\u2581"))
    scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space") else "never")

    def split(text: str) -> list[str]:
        """Words without the metaspace they begin with; one that begins a text and has none, with one."""
        if normalizer is not None and text:
            text = normalizer.normalize_str(text)
        first, *words = text.replace(" ", space).split(space)
        if first:
            words.insert(0, space + first if scheme == "never" else first)
        return words

    def rows(words: list[str]) -> list[list[int]]:
        return [
            [piece.id for piece in model.tokenize(word[1:] if word[:1] == space else space + word)]
            for word in words
        ]

    return Manner(split, rows)


# BERT's way: cut here, each word normalized, cut again and encoded by the library.

_WHITE_SPACE = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
# Character by character, or within a cluster that no ASCII white space is inside of.
_LOCAL_NORMALIZERS = {
    "BertNormalizer",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Precompiled",
    "StripAccents",
}
_PLAIN = bytes([*range(32, 127), *b"\t\n\r"])
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_]+|[^A-Za-z0-9_ \t\n\r]+")
_NOT_PLAIN = re.compile(r"[^ -~\t\n\r]+")
_SPACE = re.compile(r"[ \t\n\r]")


def _refuse_beyond_words(
    normalizers: Sequence[dict[str, Any]], splitters: Sequence[dict[str, Any]]
) -> None:
    for step in normalizers:
        if step.get("type") not in _LOCAL_NORMALIZERS:
            raise EngineRefused(f"its normalizer {step.get('type')} may look beyond a word")
    for step in splitters:
        isolated = step.get("type") == "Punctuation" and step.get("behavior") == "Isolated"
        # The first word of a text only would begin with a metaspace.
        spaced = step.get("type") == "Metaspace" and step.get("prepend_scheme") != "first"
        if not isolated and not spaced and step.get("type") not in (*_WHITE_SPACE, "Digits"):
            raise EngineRefused(f"its pre-tokenizer {step.get('type')} may look beyond a word")


def _at_punctuation(text: str) -> list[str]:
    """Words and runs of punctuation; whole what stands between spaces and is not plain ASCII."""
    if text.isascii() and not text.encode("ascii").translate(None, _PLAIN):
        return _PLAIN_WORD.findall(text)
    if _mark_after_space(text):
        return [text]
    words: list[str] = []
    at = 0
    for match in _NOT_PLAIN.finditer(text):
        start = match.start()
        if start < at:
            continue
        begin = max(at, *(text.rfind(space, at, start) + 1 for space in " \t\n\r"))
        space = _SPACE.search(text, match.end())
        words += _PLAIN_WORD.findall(text, at, begin)
        at = space.start() if space else len(text)
        words.append(text[begin:at])
    words += _PLAIN_WORD.findall(text, at)
    return words


def _at_white_space(text: str) -> list[str]:
    """What stands between ASCII white space, unless a mark joins such a space."""
    if _mark_after_space(text):
        return [text]
    return text.replace("\n", " ").replace("\t", " ").replace("\r", " ").split(" ")


def _mark_after_space(text: str) -> bool:
    """Whether there is a character that joins the one before it, and that is a space."""
    if text.isascii():
        return False
    for match in _NOT_PLAIN.finditer(text):
        start = match.start()
        if start and text[start - 1] in " \t\n\r":
            mark = text[start]
            if mark in "\u200c\u200d" or unicodedata.category(mark)[0] == "M":
                return True
    return False
