"""Ids and back, the same every time, and tokenizers that cannot be used are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.core.errors import UsageError
from hotloop.data.encode import UNKNOWN
from hotloop.data.tokenizer import (
    Tokenizer,
    byte_tokenizer,
    fingerprint_of,
    load_tokenizer,
    train_tokenizer,
    trained_size,
)
from preparing import prepare

TEXTS = [f"def f{k}(x):\n    return x + {k}  # 世界\n" for k in range(200)]
BYTES = byte_tokenizer()
TRAINED = train_tokenizer(TEXTS, 300)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_decoded_ids_are_the_text(text: str) -> None:
    assert BYTES.encode(text) == list(text.encode())
    assert BYTES.decode(BYTES.encode(text)) == text
    assert TRAINED.decode(TRAINED.encode(text)) == text


@pytest.mark.parametrize("tokenizer", [BYTES, TRAINED], ids=["bytes", "trained"])
def test_end_of_text_written_in_a_document_is_not_control(tokenizer: Tokenizer) -> None:
    text = "before<|endoftext|>after"
    assert tokenizer.end_of_text not in tokenizer.encode(text)
    assert tokenizer.encode_batch([text]) == [tokenizer.encode(text)]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_are_ids_and_256_ends_a_text() -> None:
    assert (BYTES.vocabulary_size, BYTES.end_of_text) == (257, 256)
    assert BYTES.decode([104, 105, 256]) == "hi"
    assert BYTES.decode([0xFF]) == "\ufffd"


def test_trained_tokenizer_is_the_same_in_another_process() -> None:
    program = (
        "import sys, json; from hotloop.data.tokenizer import train_tokenizer as t;"
        "sys.stdout.buffer.write(t(json.load(sys.stdin), 300).to_json())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(TEXTS).encode(), capture_output=True
    )
    assert done.stdout == TRAINED.to_json()


def test_saved_tokenizer_loads_with_the_same_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TRAINED.save(path)
    for loaded in (Tokenizer.load(path), Tokenizer.load(tmp_path), load_tokenizer(str(path))):
        assert loaded.fingerprint == TRAINED.fingerprint == fingerprint_of(path)
        assert loaded.encode(TEXTS[3]) == TRAINED.encode(TEXTS[3])
    assert BYTES.fingerprint != TRAINED.fingerprint


def test_truncation_in_a_tokenizer_file_does_not_cut_documents(tmp_path: Path) -> None:
    values = json.loads(TRAINED.to_json())
    values["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    assert Tokenizer.load(tmp_path).encode(TEXTS[0]) == TRAINED.encode(TEXTS[0])


def test_trained_tokenizer_is_no_larger_than_asked() -> None:
    assert TRAINED.vocabulary_size == 300
    assert train_tokenizer(["aaaa"], 300).vocabulary_size < 300


def test_tokenizer_without_end_of_text_is_refused_with_the_names_that_work(tmp_path: Path) -> None:
    values = json.loads(BYTES.to_json())
    values["added_tokens"] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError, match="no end-of-text token") as caught:
        Tokenizer.load(path)
    assert caught.value.where == str(path)
    assert "</s>" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "Nonsense"}}', "[]"])
def test_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="not a tokenizer"):
        load_tokenizer(str(path))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_missing_tokenizer_file_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no such tokenizer file"):
        load_tokenizer(f"nowhere/{name}")


@pytest.mark.parametrize("spec", ["train:", "train:256", "train:-5", "train:many", "train:9999999"])
def test_training_an_impossible_number_of_ids_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="cannot train"):
        trained_size(spec)


def test_name_on_the_hub_without_network_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(*_: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", offline)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with pytest.raises(UsageError, match="Name or service not known") as caught:
        load_tokenizer("hotloop-tests/no-such-tokenizer")
    assert "train:N" in str(caught.value)


def test_misspelled_spec_is_refused_without_asking_the_hub() -> None:
    with pytest.raises(UsageError, match="no tokenizer 'trian:300'"):
        load_tokenizer("trian:300")


def test_token_that_ends_a_text_can_be_chosen_and_is_found_again(tmp_path: Path) -> None:
    values = json.loads(BYTES.to_json())
    values["added_tokens"] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError, match="no token 'nothing'"):
        Tokenizer.load(path, end_of_text="nothing")
    name = min(values["model"]["vocab"])
    chosen = Tokenizer.load(path, end_of_text=name)
    assert chosen.end_of_text == values["model"]["vocab"][name]
    chosen.save(tmp_path / "chosen.json")
    again = Tokenizer.load(tmp_path / "chosen.json")
    assert (again.end_of_text, again.fingerprint) == (chosen.end_of_text, chosen.fingerprint)
    # As text it is what it was: a document that holds it is not read as control.
    assert again.encode("abc!") == BYTES.encode("abc!")


def test_dropout_in_a_tokenizer_file_is_off() -> None:
    values = json.loads(TRAINED.to_json())
    values["model"]["dropout"] = 0.9
    loaded = Tokenizer(json.dumps(values), where="here")
    assert loaded.encode(TEXTS[0] * 20) == TRAINED.encode(TEXTS[0] * 20)
    assert loaded.fingerprint == TRAINED.fingerprint


def word_level(**unknown: str) -> Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"</s>": 0, "a": 1, "?": 2}, **unknown))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Tokenizer(made.to_str(), where="here")


def test_text_that_a_vocabulary_cannot_spell_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match="cannot encode a text"):
        word_level().encode("a b")


def test_what_a_vocabulary_cannot_spell_is_counted(tmp_path: Path) -> None:
    word_level(unk_token="?").save(tmp_path / "tokenizer.json")
    (tmp_path / "a.txt").write_text("a b a c d")
    out = tmp_path / "out"
    manifest = prepare([str(tmp_path / "a.txt")], out, tokenizer=str(tmp_path / "tokenizer.json"))
    assert manifest.sources[0].altered == {UNKNOWN: 3}


def test_vocabulary_that_spells_everything_has_no_unknown_token(tmp_path: Path) -> None:
    """Also one that has learned the word None."""
    (tmp_path / "a.txt").write_text("None is None, and None is not none\n" * 50)
    manifest = prepare([str(tmp_path / "a.txt")], tmp_path / "out", tokenizer="train:300")
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert len(tokenizer.encode("None")) == 1
    assert tokenizer.unknown is None
    assert manifest.sources[0].altered == {}
