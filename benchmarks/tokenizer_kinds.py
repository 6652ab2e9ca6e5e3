"""A small tokenizer of every kind that gigatoken takes, trained here, with vocabularies that show every cut."""

from __future__ import annotations

import io
import json
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from hotloop.data.engines import giga_token
from hotloop.data.sentencepiece_model import engine_json, sentencepiece_json
from hotloop.data.tiktoken_encoding import description_of
from hotloop.data.tokenizer import Tokenizer, byte_tokenizer
from hotloop.data.tokenizer_library import BYTE_NAMES

_FILES = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:12]
_SCRIPTS = (
    "Straße naïve façade; данные, привет мир! Καλημέρα κόσμε. 世界、こんにちは。한국어 العربية עברית "
    "हिन्दी ไทย 🎉👨‍👩‍👧 don't we'll I've 1,234.5 «quoted» “so”—…\n"
)
REAL = "".join(path.read_text(encoding="utf-8") for path in _FILES)[:400_000] + _SCRIPTS * 200
"""Text to train on, and to take pieces from."""
_TEXTS = REAL.splitlines(keepends=True)

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
TIKTOKEN = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++"
    r"[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": giga_token.O200K,
}
"""As tiktoken 0.14 has them."""


@cache
def _merges() -> tuple[tuple[str, str], ...]:
    """Merges of real text, then of every pair of bytes: wherever a text is cut otherwise, ids differ."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=3000, initial_alphabet=sorted(BYTE_NAMES), show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    learned = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    pairs = [(one, other) for one in BYTE_NAMES for other in BYTE_NAMES]
    names = {"".join(pair) for pair in learned}
    return (*learned, *(pair for pair in pairs if "".join(pair) not in names))


def _added(name: str, number: int, *, special: bool = True) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, "special": special, **flags}


def byte_level(
    patterns: tuple[str, ...] = (),
    *,
    normalizer: Any = None,
    use_regex: bool | None = None,
    added: tuple[str, ...] = (),
    **model: Any,
) -> Tokenizer:
    """Byte-level BPE that splits at these patterns; without any, as GPT-2 does."""
    vocabulary = dict.fromkeys([*sorted(BYTE_NAMES), *map("".join, _merges())])
    ids = {name: number for number, name in enumerate(vocabulary)}
    splits = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in patterns
    ]
    last = {**BYTE_LEVEL, "use_regex": not patterns if use_regex is None else use_regex}
    specials = [_added("<|endoftext|>", len(ids)), _added("<|im_end|>", len(ids) + 1)]
    others = [_added(name, len(ids) + 2 + n, special=False) for n, name in enumerate(added)]
    description = {
        "version": "1.0",
        "added_tokens": specials + others,
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, last]} if splits else last,
        "decoder": {**BYTE_LEVEL, "use_regex": True},
        "model": {"type": "BPE", "vocab": ids, "merges": [list(p) for p in _merges()], **model},
    }
    return Tokenizer(json.dumps(description), where="here")


def of_tiktoken(name: str) -> Tokenizer:
    """Its ids are tiktoken's; the engine reads what is made of the encoding."""
    byte_of = {name: byte for byte, name in enumerate(BYTE_NAMES)}
    ranks = {bytes([byte]): byte for byte in range(256)}
    for pair in _merges():
        ranks.setdefault(bytes(byte_of[c] for c in "".join(pair)), len(ranks))
    ranks[" unreachable世".encode()] = len(ranks)
    special = {"<|endoftext|>": len(ranks) + 1, "<|fim_prefix|>": len(ranks) + 2}
    encoding = tiktoken.Encoding(
        name, pat_str=TIKTOKEN[name], mergeable_ranks=ranks, special_tokens=special
    )
    return Tokenizer(json.dumps(description_of(encoding)), where="here")


@cache
def _sentencepiece(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_TEXTS[-3000:]),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 1200, "hard_vocab_limit": False, **options},
    )
    return model.getvalue()


def of_sentencepiece(**options: Any) -> Tokenizer:
    proto = _sentencepiece(
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", **options
    )
    return Tokenizer(sentencepiece_json(proto, "here"), where="here")


def llama2() -> Tokenizer:
    """The same model as a tokenizer.json of the `tokenizers` library."""
    proto = _sentencepiece(
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    return Tokenizer(json.dumps(engine_json(proto)), where="here")


_NFC = {"type": "NFC"}
_TOOLS = ("<tool_call>", "</think>", "\u00e9tape")
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "GPT-2": byte_level,
    "bytes": byte_tokenizer,
    "Llama 3": lambda: byte_level((giga_token.CL100K,), ignore_merges=True),
    "Qwen 2, NFC, added tokens": lambda: byte_level(
        (giga_token.QWEN2,), normalizer=_NFC, added=_TOOLS
    ),
    "Qwen 3.5": lambda: byte_level((giga_token.QWEN35,), normalizer=_NFC),
    "o200k": lambda: byte_level((giga_token.O200K,)),
    "DeepSeek": lambda: byte_level(giga_token.DEEPSEEK),
    "tiktoken gpt2": lambda: of_tiktoken("gpt2"),
    "tiktoken cl100k": lambda: of_tiktoken("cl100k"),
    "tiktoken o200k": lambda: of_tiktoken("o200k"),
    "sentencepiece": lambda: of_sentencepiece(remove_extra_whitespaces=False),
    "sentencepiece, no prefix": lambda: of_sentencepiece(
        remove_extra_whitespaces=False, add_dummy_prefix=False
    ),
    "Llama 2": llama2,
}
"""Kind to how one is made; gigatoken takes all of them."""
