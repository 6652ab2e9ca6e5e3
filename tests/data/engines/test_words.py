"""The ids of words one by one are the ids of the text, wherever the engine does not refuse.

Strings made to go wrong: `test_fuzz_engines.py`.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from hotloop.data.engines import words
from hotloop.data.engines.engine import EngineRefused, load_engine
from hotloop.data.engines.router import TRICKY
from hotloop.data.tokenizer import Tokenizer

SOURCES = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
TEXTS = [path.read_text(encoding="utf-8") for path in SOURCES]


def trained(trainer: Any, model: Any, normalizer: Any, splitter: Any) -> Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.train_from_iterator(TEXTS[:10], trainer)
    return Tokenizer(tokenizer.to_str(), where="here")


def word_piece(normalizer: Any, splitter: Any) -> Tokenizer:
    special = ["[UNK]", "[SEP]", "<|endoftext|>"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=2000, special_tokens=special, show_progress=False
    )
    return trained(trainer, models.WordPiece(unk_token="[UNK]"), normalizer, splitter)


def unigram(normalizer: Any, splitter: Any) -> Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=1000, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    return trained(trainer, models.Unigram(), normalizer, splitter)


def metaspace(scheme: str = "always") -> Any:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "BERT": lambda: word_piece(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    "BERT, cased": lambda: word_piece(
        normalizers.BertNormalizer(lowercase=False, clean_text=False),
        pre_tokenizers.BertPreTokenizer(),
    ),
    "white space": lambda: word_piece(
        normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()]),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]),
    ),
    "XLM-R": lambda: unigram(
        normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()]),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace()]),
    ),
    "T5": lambda: unigram(
        normalizers.Sequence(
            [
                normalizers.Nmt(),
                normalizers.NFKC(),
                normalizers.Strip(left=False, right=True),
                normalizers.Replace(Regex(" {2,}"), "▁"),
            ]
        ),
        metaspace(),
    ),
    "word characters": lambda: word_piece(
        normalizers.Lowercase(),
        pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)]),
    ),
    "prefix": lambda: unigram(
        normalizers.Sequence([normalizers.Prepend("x"), normalizers.Strip()]), metaspace("never")
    ),
    "plain metaspace": lambda: unigram(None, metaspace()),
    "metaspace, first": lambda: unigram(None, metaspace("first")),
    "metaspace, never": lambda: unigram(normalizers.Lowercase(), metaspace("never")),
}
_made: dict[str, Tokenizer] = {}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param not in _made:
        _made[request.param] = KINDS[request.param]()
    return _made[request.param]


def rows(name: str, tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    ids, lengths = load_engine(name, tokenizer, threads=1).encode(
        texts, [text.encode() for text in texts]
    )
    assert len(lengths) == len(texts)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def test_texts_and_tricky_texts(tokenizer: Tokenizer) -> None:
    texts = [*TEXTS[10:20], *TRICKY, *(f" {text} " for text in TRICKY), TEXTS[0][:5000] * 2]
    assert rows("words", tokenizer, texts) == rows("reference", tokenizer, texts)


@pytest.mark.parametrize("split", [words._at_punctuation, words._at_white_space])
@pytest.mark.parametrize("mark", ["\u0301", "\u0903", "\u200d"])
def test_space_that_a_mark_joins_is_no_place_to_cut(
    split: Callable[[str], list[str]], mark: str
) -> None:
    """A charsmap (`Precompiled`) is looked up by whole clusters, which may begin with the space."""
    assert split(f"a {mark}b c") == [f"a {mark}b c"]
    assert split(f"a b{mark} c") == ["a", f"b{mark}", "c"]


def test_what_was_kept_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "KEPT_BYTES", 1000)
    tokenizer = KINDS["BERT"]()
    engine = words.load(tokenizer, 1).engine
    assert isinstance(engine, words.Words)
    for text in TEXTS[:6]:
        ids, _ = engine.encode([text], [text.encode()])
        assert ids.tolist() == tokenizer.encode(text)
        alone = words.load(tokenizer, 1).engine
        assert isinstance(alone, words.Words)
        alone.encode([text], [text.encode()])
        assert engine._known == alone._known
        assert engine._kept > 1000


BYTE_LEVEL = json.loads(pre_tokenizers.ByteLevel(add_prefix_space=False).__getstate__())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pre_tokenizer": None}, "none"),
        ({"pre_tokenizer": BYTE_LEVEL}, "ByteLevel"),
        ({"normalizer": {"type": "Prepend", "prepend": "▁"}}, "Prepend"),
        ({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, "Strip"),
        (
            {"normalizer": {"type": "Replace", "pattern": {"String": "a b"}, "content": "c"}},
            "Replace",
        ),
        ({"added_tokens": "new york"}, "added tokens"),
    ],
)
def test_what_may_look_beyond_a_word_is_refused(change: dict[str, Any], why: str) -> None:
    values = json.loads(KINDS["BERT"]().to_json())
    if isinstance(change.get("added_tokens"), str):
        added = {"id": 5000, "content": "new york", "special": False, "normalized": True}
        added |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        change = {"added_tokens": [*values["added_tokens"], added]}
    changed = Tokenizer(json.dumps(values | change), where="here")
    with pytest.raises(EngineRefused, match=why):
        load_engine("words", changed, threads=1)


def test_metaspace_that_asks_where_the_text_began_is_refused_with_a_normalizer() -> None:
    """Of "\\x0bx" nothing that was at the start is left, and the library puts no metaspace there."""
    tokenizer = unigram(normalizers.Nmt(), metaspace("first"))
    with pytest.raises(EngineRefused, match="before it was normalized"):
        load_engine("words", tokenizer, threads=1)
