"""sentencepiece models: their own library's ids, from the model file and from what is prepared with it."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.core.errors import UsageError
from hotloop.data.encode import UNKNOWN
from hotloop.data.engines import TRICKY, route
from hotloop.data.prepared import open_prepared
from hotloop.data.sources.tree import standard_library_path
from hotloop.data.spec import Spec, cached_path
from hotloop.data.tokenizer import Tokenizer, fingerprint_of, load_tokenizer
from preparing import prepare, prepare_text, shards

sentencepiece = pytest.importorskip("sentencepiece")

TEXTS = [
    path.read_bytes().decode(errors="replace")
    for path in sorted(standard_library_path().glob("*.py"))[::8]
]
KINDS = {
    "bpe": {"model_type": "bpe"},
    "bpe-bytes": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
    },
    "unigram": {"model_type": "unigram"},
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "add_dummy_prefix": False},
}


PRINTABLE = "".join(map(chr, range(33, 127)))


def trained(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*TEXTS[0].splitlines(), *TEXTS[1].splitlines(), PRINTABLE]),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 400, "hard_vocab_limit": False, **options},
    )
    return model.getvalue()


@pytest.fixture(scope="module", params=list(KINDS))
def model_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tokenizer.model"
    path.write_bytes(trained(**KINDS[request.param]))
    return path


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bpe") / "spiece.model"
    path.write_bytes(trained(**KINDS["bpe-bytes"], control_symbols=["<ctl>"]))
    return path


def theirs(path: Path) -> Any:
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def test_ids_are_sentencepieces_own(model_file: Path) -> None:
    tokenizer, library = load_tokenizer(str(model_file)), theirs(model_file)
    texts = [*TEXTS, *TRICKY, *tokenizer.special_tokens]
    wanted = library.encode(texts, out_type=int)
    assert [tokenizer.encode(text) for text in texts] == wanted
    assert tokenizer.encode_batch(texts, threads=2) == tokenizer.encode_batch(texts) == wanted
    assert [tokenizer.decode(ids) for ids in wanted] == library.decode(wanted)
    assert tokenizer.end_of_text == library.eos_id()
    assert tokenizer.vocabulary_size == library.piece_size()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text())
def test_ids_of_any_text_are_sentencepieces_own(model_file: Path, text: str) -> None:
    assert load_tokenizer(str(model_file)).encode(text) == theirs(model_file).encode(text)


def test_model_file_its_directory_and_what_is_saved_are_one_tokenizer(
    model_file: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(model_file))
    assert load_tokenizer(str(model_file.parent)).fingerprint == tokenizer.fingerprint
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(str(tmp_path))
    assert (
        loaded.fingerprint == tokenizer.fingerprint == fingerprint_of(tmp_path / "tokenizer.json")
    )
    assert loaded.end_of_text == tokenizer.end_of_text
    assert loaded.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])


def test_tokenizer_json_beside_a_model_is_taken(bpe: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(bpe.read_bytes())
    load_tokenizer("bytes").save(tmp_path / "tokenizer.json")
    assert load_tokenizer(str(tmp_path)).vocabulary_size == 257


def test_control_written_in_a_document_is_not_control(bpe: Path) -> None:
    tokenizer = load_tokenizer(str(bpe))
    assert tokenizer.special_tokens == ("<s>", "</s>", "<ctl>")
    ids = tokenizer.encode("a</s> <s> <ctl>")
    assert not {theirs(bpe).piece_to_id(name) for name in tokenizer.special_tokens} & set(ids)
    assert tokenizer.decode([*ids, tokenizer.end_of_text]) == "a</s> <s> <ctl>"


def test_ids_beyond_the_model_give_no_text(bpe: Path) -> None:
    tokenizer = load_tokenizer(str(bpe))
    ids = tokenizer.encode("def")
    assert tokenizer.decode([*ids, 100_000]) == tokenizer.decode(ids) == "def"


def test_end_of_text_can_be_another_piece(bpe: Path, tmp_path: Path) -> None:
    chosen = load_tokenizer(str(bpe), end_of_text="<ctl>")
    assert chosen.end_of_text == theirs(bpe).piece_to_id("<ctl>") != theirs(bpe).eos_id()
    chosen.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path)
    assert (again.end_of_text, again.fingerprint) == (chosen.end_of_text, chosen.fingerprint)
    with pytest.raises(UsageError, match="no token 'nothing'") as caught:
        load_tokenizer(str(bpe), end_of_text="nothing")
    assert "<ctl>" in str(caught.value)


def test_model_without_an_end_takes_no_symbol_that_text_can_hold(tmp_path: Path) -> None:
    """`<|endoftext|>` as a user defined symbol is text: a document may hold it."""
    path = tmp_path / "no-end.model"
    path.write_bytes(trained(eos_id=-1, user_defined_symbols=["<|endoftext|>"]))
    with pytest.raises(UsageError, match="no end-of-text token"):
        load_tokenizer(str(path))
    assert load_tokenizer(str(path), end_of_text="<s>").end_of_text == theirs(path).bos_id()


@pytest.mark.parametrize("content", [b"", b"garbage", b"IQ== 0\nIg== 1\n", None])
def test_file_that_is_no_model_or_cut_is_refused(
    bpe: Path, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(bpe.read_bytes()[:-50] if content is None else content)
    with pytest.raises(UsageError, match="not a sentencepiece model") as caught:
        load_tokenizer(str(path))
    assert caught.value.where == str(path)


@pytest.mark.parametrize("proto", [7, "%%%", base64.b64encode(b"garbage").decode(), None])
def test_damaged_model_in_a_tokenizer_file_is_refused(tmp_path: Path, proto: object) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"type": "sentencepiece", "proto": proto}}))
    with pytest.raises(UsageError, match="sentencepiece model"):
        load_tokenizer(str(path))


def test_missing_library_is_one_clear_error(
    bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_tokenizer(str(bpe)).save(tmp_path / "tokenizer.json")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    for spec in (bpe, tmp_path):
        with pytest.raises(UsageError, match="not installed") as caught:
            load_tokenizer(str(spec))
        assert "hotloop[sentencepiece]" in str(caught.value)


LLAMA = {"model_type": "bpe", "byte_fallback": True, "remove_extra_whitespaces": False}
LLAMA |= {"normalization_rule_name": "identity"}


@pytest.mark.parametrize("dummy_prefix", [True, False])
def test_engines_give_sentencepieces_ids_for_models_of_llamas_kind(
    tmp_path: Path, dummy_prefix: bool
) -> None:
    pytest.importorskip("gigatoken")
    path = tmp_path / "llama.model"
    path.write_bytes(trained(**LLAMA, add_dummy_prefix=dummy_prefix, vocab_size=900))
    tokenizer = load_tokenizer(str(path))
    routing = route(tokenizer, [*TEXTS, "<unk> <0x41> \u2581\u2581a"], threads=1)
    found = {tried.engine: (tried.identical, tried.why) for tried in routing.tried}
    assert found["gigatoken"] == (True, "")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({**LLAMA, "model_type": "unigram"}, "no BPE"),
        ({**LLAMA, "byte_fallback": False}, "without byte fallback"),
        ({**LLAMA, "remove_extra_whitespaces": True}, "change text"),
        ({**LLAMA, "normalization_rule_name": "nmt_nfkc"}, "change text"),
        ({**LLAMA, "treat_whitespace_as_suffix": True}, "spaces"),
        ({**LLAMA, "user_defined_symbols": ["<user>"]}, "user defined"),
    ],
)
def test_other_models_are_left_to_sentencepiece_and_the_router_says_why(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    path = tmp_path / "other.model"
    path.write_bytes(trained(**options))
    with pytest.raises(ValueError, match=why):
        load_tokenizer(str(path)).for_engines()
    routing = route(load_tokenizer(str(path)), TEXTS[:2], threads=1)
    assert routing.engine == "reference"
    if importlib.util.find_spec("gigatoken") is not None:
        assert why in routing.why


def test_prepared_text_is_sentencepieces_for_any_number_of_workers(
    bpe: Path, tmp_path: Path
) -> None:
    source = tmp_path / "text"
    source.mkdir()
    for number, text in enumerate(TEXTS):
        (source / f"{number:03}.py").write_text(text)
    for out, workers, engine in (("one", 1, "reference"), ("two", 2, "auto")):
        done = prepare_text(
            [str(source)],
            tmp_path / out,
            tokenizer=str(bpe),
            workers=workers,
            engine=engine,
            job_bytes=100_000,
            validation_fraction=0,
        )
        assert len(done.manifest.jobs) > 2
    assert shards(tmp_path / "one") == shards(tmp_path / "two")
    # A second corpus, with what the first was prepared with.
    prepare([str(source)], tmp_path / "three", tokenizer=str(tmp_path / "one" / "tokenizer.json"))
    opened, library = open_prepared(tmp_path / "one"), theirs(bpe)
    ids = opened.train.read(np.array([0]), len(opened.train))[0].tolist()
    wanted = [[*library.encode(text), library.eos_id()] for text in TEXTS]
    assert ids == [number for document in wanted for number in document]


def test_cached_text_is_told_apart_by_the_model_in_a_directory(
    corpus: Path, model_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model_file.read_bytes())
    wanted = Spec((str(corpus),), str(tmp_path))
    first = cached_path(wanted)
    (tmp_path / "tokenizer.model").write_bytes(model_file.read_bytes() + b"\0")
    assert cached_path(wanted) != first


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_what_a_model_cannot_spell_is_counted(tmp_path: Path, byte_fallback: bool) -> None:
    (tmp_path / "some.model").write_bytes(trained(model_type="bpe", byte_fallback=byte_fallback))
    (tmp_path / "a.txt").write_text("\u4e16 a \u754c b" * 10)
    model = str(tmp_path / "some.model")
    manifest = prepare([str(tmp_path / "a.txt")], tmp_path / "out", tokenizer=model)
    ids = theirs(tmp_path / "some.model").encode((tmp_path / "a.txt").read_text())
    unknown = ids.count(theirs(tmp_path / "some.model").unk_id())
    assert bool(unknown) is not byte_fallback
    assert manifest.sources[0].altered == ({UNKNOWN: unknown} if unknown else {})
