"""gigatoken: byte-level and byte-fallback BPE, a hundred times as fast as the reference.

It is used for the kinds of tokenizers below, for which `benchmarks/fuzz_engines.py` compares it with the
reference. It is given no normalizer and no added tokens: texts that they would change are the reference's.

"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np

from hotloop.core.errors import first_line, pip_install
from hotloop.data.engines import EngineRefused, Reference
from hotloop.data.tokenizer import Tokenizer
from hotloop.data.tokenizer_library import BYTE_NAMES

PROVEN_VERSION = "0.10."
"""Another version is another program: it is refused until the comparison has been run with it."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
CL100K = rf"{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
QWEN2 = rf"{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
TIKTOKEN_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|(?>\p{N}{1,3})| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++\z|\s*[\r\n]|\s+(?!\S)|\s"
)
"""As tiktoken 0.14 has it, in the `tokenizers` library's dialect: `CL100K`, but for the end of a text."""
_SPLITS = {(CL100K,), (QWEN2,), (QWEN35,), (O200K,), DEEPSEEK, (TIKTOKEN_CL100K,)}
_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
_PREFIX = {"type": "Prepend", "prepend": "\u2581"}
_BYTE_FALLBACK = ([_PREFIX, _SPACE], [_SPACE])
"""Normalizers of Llama 2's kind."""


Proven = Callable[[str, bytes], bool]
"""True for a text, which comes with the same as UTF-8, that gigatoken may be given."""


class GigaToken:
    """gigatoken for the texts that it is proven for; the reference for the others, one by one."""

    name = "gigatoken"
    # A call costs a millisecond, in Python, before it begins.
    batch_bytes = 8 << 20

    def __init__(
        self, encoder: Any, reference: Reference, proven: Proven, *, version: str, parallel: bool
    ) -> None:
        self.described = f"{self.name} {version}, else {reference.described}"
        self._encoder = encoder
        self._reference = reference
        self._proven = proven
        self._parallel = parallel
        self.given_away = 0
        """Texts that the reference encoded."""

    def encode(
        self, texts: Sequence[str], contents: Sequence[bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        proven = list(map(self._proven, texts, contents))
        if all(proven):
            return self._own(contents)
        rows: list[np.ndarray] = [np.empty(0, dtype=np.uint32)] * len(texts)
        own = [index for index, is_proven in enumerate(proven) if is_proven]
        if own:
            ids, lengths = self._own([contents[index] for index in own])
            for index, row in zip(own, np.split(ids, np.cumsum(lengths)[:-1])):
                rows[index] = row
        away = [index for index, is_proven in enumerate(proven) if not is_proven]
        self.given_away += len(away)
        for group in _groups(away, contents, self._reference.batch_bytes):
            found = self._reference.rows([texts[index] for index in group])
            for index, row_ids in zip(group, found):
                rows[index] = np.asarray(row_ids, dtype=np.uint32)
        return np.concatenate(rows), np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))

    def _own(self, contents: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        layout = self._encoder.encode_batch(list(contents), parallel=self._parallel).layout
        offsets = np.asarray(layout.offsets.data)
        # A list array need not begin at the start of its content.
        return np.asarray(layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets)


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


def values_for(tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer.json as it has to read it. Raises `ValueError` and `EngineRefused`."""
    values = tokenizer.for_engines()
    if values["model"].get("type", "BPE") != "BPE":
        raise EngineRefused("takes BPE only")
    patterns = _patterns(values)
    if patterns == (TIKTOKEN_CL100K,):
        values["pre_tokenizer"] = json.loads(
            json.dumps(values["pre_tokenizer"]).replace(
                json.dumps(TIKTOKEN_CL100K), json.dumps(CL100K)
            )
        )
    if patterns is not None:
        values["normalizer"] = None
    values["added_tokens"] = []
    return values


def _patterns(values: dict[str, Any]) -> tuple[str, ...] | None:
    """Patterns at which a byte-level tokenizer splits, empty for GPT-2's own way; `None`: Llama 2's kind.

    Raises `EngineRefused` for a kind of which nothing is proven.
    """
    model = values["model"]
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise EngineRefused("its model marks the inside or the end of words")
    normalizers = _steps(values.get("normalizer"), "normalizers")
    splitters = _steps(values.get("pre_tokenizer"), "pretokenizers")
    if not splitters and model.get("byte_fallback"):
        if normalizers not in _BYTE_FALLBACK:
            raise EngineRefused("its normalizer is not proven")
        return None
    if normalizers not in ([], [{"type": "NFC"}]):
        raise EngineRefused("its normalizer is not proven")
    *splits, last = splitters or [{}]
    patterns = tuple(str(step.get("pattern", {}).get("Regex")) for step in splits)
    isolated = all(
        step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step["invert"]
        for step in splits
    )
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space") or not isolated:
        raise EngineRefused("its pre-tokenizer is not proven")
    if splits and (patterns not in _SPLITS or last.get("use_regex", True)):
        raise EngineRefused("its pattern for splitting text is not proven")
    if not splits and not last.get("use_regex", True) and model.get("merges"):
        raise EngineRefused("it does not split text, which gigatoken does nevertheless")
    if not set(BYTE_NAMES) <= model["vocab"].keys():
        raise EngineRefused("its vocabulary lacks bytes")
    return patterns


def _steps(step: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer without the sequences that it may be in."""
    if step is None:
        return []
    if step.get("type") == "Sequence":
        return [inner for one in step[name] for inner in _steps(one, name)]
    return [step]


def _proven(tokenizer: Tokenizer) -> Proven:
    values = tokenizer.for_engines()
    patterns = _patterns(values)
    composed = bool(_steps(values.get("normalizer"), "normalizers")) and patterns is not None
    end = patterns == (TIKTOKEN_CL100K,)
    # The reference reads special tokens as text, but not the others. In models of Llama 2's kind both
    # stand among the pieces, with the names of bytes.
    names = [] if patterns is not None else ["<0x"]
    for token in values.get("added_tokens") or []:
        if patterns is None or not token.get("special"):
            names += {token["content"], unicodedata.normalize("NFC", token["content"])}
    control = _finders(names)

    def proven(text: str, content: bytes) -> bool:
        return (
            of_old_characters(text, content)
            and (not composed or is_composed(text))
            and not any(first in text and found.search(text) for first, found in control)
            and not (end and _ends_in_another_way(text))
        )

    return proven


def _finders(names: list[str]) -> list[tuple[str, re.Pattern[str]]]:
    """By their first characters: to look for one of these costs next to nothing."""
    firsts = sorted({name[0] for name in names})
    return [
        (first, re.compile("|".join(re.escape(n) for n in sorted(names) if n[0] == first)))
        for first in firsts
    ]


def _ends_in_another_way(text: str) -> bool:
    """True when white space at the end holds a line end and does not end with one.

    tiktoken takes it whole there; the published pattern cuts it behind the line end.
    """
    last = text[-1:]
    if not last.isspace() or last in "\r\n":
        return False
    space = text[len(text.rstrip()) :]
    return "\n" in space or "\r" in space


def load(tokenizer: Tokenizer, threads: int) -> GigaToken:
    try:
        import awkward  # noqa: F401 - what gigatoken's arrays are
        import gigatoken
    except ImportError as error:
        raise EngineRefused(f"not installed ({pip_install('fast')})") from error
    found = version("gigatoken")
    if not found.startswith(PROVEN_VERSION):
        raise EngineRefused(f"version {found} is not proven, {PROVEN_VERSION}x is")
    try:
        description = json.dumps(values_for(tokenizer), ensure_ascii=False)
        encoder = gigatoken.Tokenizer.from_json(description).backend
        proven = _proven(tokenizer)
    except EngineRefused:
        raise
    except Exception as error:
        raise EngineRefused(f"does not take this tokenizer: {first_line(error)[:160]}") from error
    reference = Reference(tokenizer, threads)
    return GigaToken(encoder, reference, proven, version=found, parallel=threads > 1)


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
