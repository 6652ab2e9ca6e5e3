"""A trained model from its run directory: of a run that diverged, with the run's threads, and its text as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.checkpoint import store
from hotloop.cli.main import run
from hotloop.core.settings import load_settings
from hotloop.data.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer, train_tokenizer
from hotloop.hardware.limits import default_threads
from hotloop.train.start import start
from hotloop.train.trained import Text, load_trained


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_run_that_diverged_is_told_so_and_exits_2(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(load_settings(tiny_config), tmp_path / "run")
    found, _ = store.latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    tensors, state = store.load(found, ("model", "optimizer", "random"))
    tensors["model"] = {name: weight * 1e30 for name, weight in tensors["model"].items()}
    store.save(
        tmp_path / "run" / "checkpoints", found.step + 1, tensors=tensors, state=state, keep=2
    )
    capsys.readouterr()
    out = tmp_path / "exported"
    for command in (["generate"], ["export", "--no-verify", "--out", str(out)]):
        assert run([*command, str(tmp_path / "run")]) == 2
        said = capsys.readouterr()
        assert said.err.startswith(
            "error: this model computes no numbers: its training diverged\n  at "
        )
        assert said.out == ""
    assert not out.exists()


def test_no_weights_are_drawn_before_they_are_read(tiny_config: Path, tmp_path: Path) -> None:
    start(load_settings(tiny_config), tmp_path / "run")
    before = torch.get_rng_state()
    load_trained(tmp_path / "run", "cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_model_is_used_with_the_threads_of_its_run(
    tiny_config: Path, tmp_path: Path, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(load_settings(tiny_config, ["train.num_threads=3"]), tmp_path / "chosen")
    start(load_settings(tiny_config, ["train.num_threads=auto"]), tmp_path / "detected")
    torch.set_num_threads(2)
    load_trained(tmp_path / "chosen", "cpu")
    assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # as another machine would have it
    load_trained(tmp_path / "detected", "cpu")
    assert torch.get_num_threads() == default_threads() == 5


def test_model_that_no_memory_holds_is_refused_before_it_is_built(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("model.width=100000", "model.heads=100000", "model.layers=1000")
    assert run(["train", str(tiny_config), *sizes, "--out", str(tmp_path / "run")]) == 4
    err = capsys.readouterr().err
    assert "billion weights and takes" in err
    assert "this process may use" in err


@pytest.fixture(scope="module", params=["bytes", "trained", "sentencepiece"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    texts = [f"def f{k}(x):\n    return x + {k}  # 世界 \U0001f600\n" for k in range(200)]
    if request.param == "bytes":
        return byte_tokenizer()
    if request.param == "trained":
        return train_tokenizer(texts, 300)
    sentencepiece = pytest.importorskip("sentencepiece")
    model = tmp_path_factory.mktemp("sentencepiece") / "text.model"
    with model.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=file, vocab_size=340, byte_fallback=True,
            hard_vocab_limit=False, minloglevel=2, num_threads=1,
        )  # fmt: skip
    return load_tokenizer(str(model))


def grown(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What of a text was there after each token, and at its end."""
    text, seen = Text("", 0), []
    for number in (*ids, None):
        text.grow(tokenizer, number)
        seen.append(text.text)
    assert text.tokens == len(ids)
    return seen


@settings(max_examples=200)
@given(data=st.data())
def test_a_text_that_grows_is_in_the_end_that_of_all_its_ids(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    """Of ids that spell something and of any ids: a model that has learned little writes half characters."""
    if data.draw(st.booleans()):
        ids = tokenizer.encode(data.draw(st.text()))
    else:
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size - 1)))
    *seen, last = grown(tokenizer, ids)
    assert last == tokenizer.decode(ids)
    for each in seen:
        assert last.startswith(each)
        assert not each.endswith("\ufffd")


def test_a_word_keeps_the_space_between_it_and_the_prompt(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("def f1(x): return x + 1")
    for place in range(1, len(ids)):
        text = Text("", 0)
        text.begin(ids[:place])
        for number in (*ids[place:], None):
            text.grow(tokenizer, number)
        assert tokenizer.decode(ids[:place]) + text.text == tokenizer.decode(ids)


def test_a_character_is_shown_when_it_is_whole() -> None:
    *seen, _ = grown(byte_tokenizer(), list("é世\U0001f600!".encode()))
    latin, chinese, smile = "é", "é世", "é世\U0001f600"
    assert seen == ["", latin, latin, latin, chinese, chinese, chinese, chinese, smile, smile + "!"]
