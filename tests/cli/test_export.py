"""`hotloop export`, and a training that starts from what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hotloop.checkpoint import store
from hotloop.cli import main
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.train.start import start

LLAMA = ("model.family=llama", "model.kv_heads=1")


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    found, _ = store.latest(run / "checkpoints")
    assert found is not None
    return store.load(found, ("model",))[0]["model"]


def test_a_trained_run_is_exported_verified_and_started_from_again(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    start(load_settings(tiny_config, LLAMA), tmp_path / "run")
    out, found = tmp_path / "out", tmp_path / "found.json"
    assert main.run(["export", str(tmp_path / "run"), "--out", str(out), "--json", str(found)]) == 0
    said = capsys.readouterr().out
    assert "exported step 12 as LlamaForCausalLM" in said
    assert "logits of transformers differ by at most" in said
    facts = json.loads(found.read_text())
    assert facts["largest_logit_difference"] < 1e-5
    assert facts["not_verified"] is None
    assert {path.name for path in out.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip

    again = (*LLAMA, f"train.init_from={out}", "optimizer.learning_rate=1e-12", "train.steps=5")
    start(load_settings(tiny_config, again), tmp_path / "again")
    before, after = final_weights(tmp_path / "run"), final_weights(tmp_path / "again")
    for name, tensor in before.items():
        assert torch.allclose(tensor, after[name], atol=1e-8), name
    (out / "config.json").unlink()  # what was begun goes on from its own checkpoint
    start(load_settings(tiny_config, again), tmp_path / "again")


def test_without_transformers_it_exports_and_says_that_it_did_not_verify(
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    assert main.run(["export", str(finished_run), "--out", str(tmp_path / "out")]) == 0
    assert "verified  no: transformers is not installed" in capsys.readouterr().out
    asked = ["export", str(finished_run), "--out", str(tmp_path / "other"), "--verify"]
    assert main.run(asked) == 2
    assert "hotloop[export]" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_what_no_class_expresses_exits_2_and_names_the_setting(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(load_settings(tiny_config, ["model.qk_norm=true"]), tmp_path / "run")
    assert main.run(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 2
    assert "`model.qk_norm: true`" in capsys.readouterr().err


def test_a_model_of_another_tokenizer_is_not_started_from(
    tiny_config: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    other = json.loads((tiny_data(tiny_config) / "tokenizer.json").read_text())
    other["model"]["vocab"]["extra"] = 300
    (tmp_path / "model/tokenizer.json").write_text(json.dumps(other))
    settings = load_settings(tiny_config, [f"train.init_from={tmp_path / 'model'}"])
    with pytest.raises(UsageError, match="another tokenizer"):
        start(settings, tmp_path / "run")


def tiny_data(config: Path) -> Path:
    prepared = load_settings(config).config.data.prepared
    assert prepared is not None
    return Path(prepared)


def test_a_run_on_a_sentencepiece_model_writes_text_and_is_exported_with_the_model(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = tmp_path / "text.model"
    lines = [f"the {word} is {number}" for number in range(40) for word in ("cat", "dog", "house")]
    with model.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=file,
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
        )
    (tmp_path / "text.txt").write_text("\n".join(lines))
    prepared, run, out = tmp_path / "sp", tmp_path / "run", tmp_path / "out"
    told = ["--out", str(prepared), "--tokenizer", str(model)]
    assert main.run(["prepare", str(tmp_path / "text.txt"), *told]) == 0
    changes = (*LLAMA, f"data.prepared={prepared}", "eval.every_steps=0")
    start(load_settings(tiny_config, changes), run)
    assert main.run(["generate", str(run), "--prompt", "the ", "--tokens", "5"]) == 0
    capsys.readouterr()
    assert main.run(["export", str(run), "--out", str(out)]) == 0
    assert "tokenizer.model" in capsys.readouterr().out
    assert (out / "tokenizer.model").read_bytes() == model.read_bytes()
    assert not (out / "tokenizer.json").exists()
