"""A long document in pieces has the ids it has whole."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from hotloop.core.errors import UsageError
from hotloop.data import gather
from hotloop.data.engines import Reference
from hotloop.data.gather import Pieces, is_cut
from hotloop.data.prepared import open_prepared
from hotloop.data.sources import ReadOptions, Report, documents
from hotloop.data.sources.plan import plan
from hotloop.data.sources.read import read_unit
from hotloop.data.tokenizer import Tokenizer, byte_tokenizer, train_tokenizer
from preparing import prepare_text


def text_of(words: int, seed: int) -> str:
    generator = random.Random(seed)
    vocabulary = [
        "the",
        "loop",
        "reads",
        "don't",
        "\u4e16\u754c",
        "x = 1\n",
        "\n\n  y",
        "42",
        "é!",
        "...",
    ]
    return " ".join(generator.choices(vocabulary, k=words))


def wordpiece() -> Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[SEP]"]
    made.train_from_iterator(
        [text_of(2000, 1)], trainers.WordPieceTrainer(vocab_size=80, special_tokens=special)
    )
    return Tokenizer(made.to_str(), where="wordpiece")


def unigram() -> Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = ["<unk>", "</s>"]
    made.train_from_iterator(
        [text_of(2000, 1)],
        trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>"),
    )
    return Tokenizer(made.to_str(), where="unigram")


TOKENIZERS = {
    "bytes": byte_tokenizer,
    "bpe": lambda: train_tokenizer([text_of(2000, 1)], 320),
    "wordpiece": wordpiece,
    "unigram": unigram,
}


@pytest.mark.parametrize("wanted", [3000, 1_000_000])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_have_the_ids_of_the_whole(
    kind: str, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "WIDTHS", (203, 101, 50))
    monkeypatch.setattr(gather, "LEAST_PIECE", 1000)
    tokenizer = TOKENIZERS[kind]()
    text = text_of(6000, 2)
    made = Pieces(tokenizer.encode, "a.txt", wanted)
    parts = [text[at : at + 5000] for at in range(0, len(text), 5000)]
    given = [entry for part in parts[:-1] for entry in made.take(part)]
    given += made.finish(parts[-1])
    assert [last for _, last in given] == [False] * (len(given) - 1) + [True]
    found = [piece for piece, _ in given]
    assert len(found) > 4
    assert max(map(len, found)) < (6000 if wanted == 3000 else 12_000)
    assert "".join(found) == text
    assert [i for piece in found for i in tokenizer.encode(piece)] == tokenizer.encode(text)


def test_cut_inside_a_word_is_not_one() -> None:
    tokenizer = train_tokenizer([text_of(2000, 1)], 320)
    text = text_of(300, 3)
    inside = text.index("loop") + 2
    assert not is_cut(text, inside, tokenizer.encode)
    assert is_cut(text, text.index(" loop"), tokenizer.encode)


def test_document_without_a_cut_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "LONGEST_PIECE", 20_000)
    made = Pieces(lambda text: [len(text)], "a.txt", 1_000_000)
    assert list(made.take("x" * 15_000)) == []
    with pytest.raises(UsageError, match="cannot encode this document in pieces"):
        list(made.take("x" * 15_000))


@pytest.mark.parametrize("batch_bytes", [3000, 1 << 20])
def test_prepared_long_document_is_one_document_with_its_ids(
    batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "LEAST_PIECE", 3000)
    monkeypatch.setattr(Reference, "batch_bytes", batch_bytes)
    monkeypatch.setattr(documents, "PIECE_BYTES", 12_000)
    long, short = text_of(9000, 5), "a short one"
    lines = [json.dumps({"text": text}) for text in (short, long, "another")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    units = plan([str(tmp_path / "a.jsonl")]).units
    read = [entry for one in units for entry in read_unit(one, ReadOptions(), Report())]
    assert sum(entry.part for entry in read) >= 2
    options: dict[str, Any] = {"tokenizer": "train:300", "validation_fraction": 0}
    manifest = prepare_text([str(tmp_path / "a.jsonl")], tmp_path / "out", **options).manifest
    assert manifest.documents == 3
    opened = open_prepared(tmp_path / "out")
    ids = opened.train.read(np.array([0]), len(opened.train))[0]
    tokenizer = Tokenizer.load(tmp_path / "out")
    wanted = [
        i
        for text in (short, long, "another")
        for i in (*tokenizer.encode(text), tokenizer.end_of_text)
    ]
    assert ids.tolist() == wanted
