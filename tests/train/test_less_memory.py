"""The loss in chunks, and activations computed again: the same training in less memory."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from trainings import killed_after, losses, train, weights

from hotloop.core.errors import UsageError
from hotloop.optimizations.compiling.trainer import compile_model
from hotloop.train import run as run_module
from hotloop.train.run import DecoderShape, decoder_shape

CHUNKED, AGAIN = "train.loss=chunked", "train.activation_checkpointing"
STACK = ("averaging.name=ema", "train.grad_accum_steps=2", "train.microbatch=2")


@pytest.fixture(autouse=True)
def _chunks_of_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "most_tokens", lambda vocabulary, width: 10)


def held_out(directory: Path) -> list[float]:
    lines = (directory / "evals.jsonl").read_text().splitlines()
    return [v for line in lines for k, v in json.loads(line).items() if k.endswith("loss")]


@pytest.mark.parametrize(
    "settings", [("model.family=llama",), ("data.layout=pack", "data.document_mask=true"), STACK]
)  # fmt: skip
def test_a_chunked_loss_trains_the_same(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    for value in ("plain", "chunked"):
        train(tiny_config, tmp_path / value, f"train.loss={value}", *settings)
    assert losses(tmp_path / "chunked") == pytest.approx(losses(tmp_path / "plain"), rel=1e-5)
    assert losses(tmp_path / "chunked") != losses(tmp_path / "plain")  # it really was another sum
    assert held_out(tmp_path / "chunked") == pytest.approx(held_out(tmp_path / "plain"), rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.dropout=0.2", f"{AGAIN}=2"),
        (CHUNKED, "train.compile=true", "model.dropout=0.2"),
        ("model.dropout=0.2", f"{AGAIN}=selective"),
        ("train.compile=true", f"{AGAIN}=selective"),
        ("train.compile=true", f"{AGAIN}=budget=0.3"),
    ],
    ids=["fp32", "second", "chunked, compiled", "selective", "selective, compiled", "budget"],
)
def test_training_with_activations_computed_again_is_the_same_to_the_bit_and_resumes(
    tiny_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: tuple[str, ...],
) -> None:
    backend = partial(compile_model, backend="aot_eager")
    monkeypatch.setattr(run_module, "compile_model", backend)
    settings = ("model.layers=3", *settings)
    again = () if any(AGAIN in each for each in settings) else (f"{AGAIN}=full",)
    whole, kept = tmp_path / "again", tmp_path / "kept"
    train(tiny_config, whole, *settings, *again)
    train(tiny_config, kept, *settings, f"{AGAIN}=none")
    assert losses(whole) == losses(kept)
    killed_after(whole, step=8)
    train(tiny_config, whole, *settings, *again)
    assert losses(whole) == losses(kept)
    for name, weight in weights(whole)["model"].items():
        assert torch.equal(weight, weights(kept)["model"][name])


def test_a_run_goes_on_compiled_in_another_way(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "compile_model", partial(compile_model, backend="aot_eager"))
    run, settings = tmp_path / "run", ("model.layers=3", "averaging.name=ema", "train.gelu=tanh")
    settings += ("train.attention=sdpa",)  # `auto` asks whether the model is compiled
    train(tiny_config, run, *settings, "train.compile=blocks")
    wanted, names = losses(run), weights(run)["model"].keys()
    for how in ("true", "false", "blocks"):
        killed_after(run, step=8)
        train(tiny_config, run, *settings, f"train.compile={how}")
        assert losses(run) == pytest.approx(wanted, rel=1e-5)
        assert weights(run)["model"].keys() == names


def test_a_run_goes_on_with_activations_computed_again_but_not_with_another_loss(
    tiny_config: Path, tmp_path: Path
) -> None:
    train(tiny_config, tmp_path / "run", f"{AGAIN}=none")
    wanted = losses(tmp_path / "run")
    killed_after(tmp_path / "run", step=8)
    with pytest.raises(UsageError, match=r"with `train\.loss: plain`, not chunked"):
        train(tiny_config, tmp_path / "run", CHUNKED)
    train(tiny_config, tmp_path / "run", f"{AGAIN}=full")
    assert losses(tmp_path / "run") == wanted


def test_a_run_older_than_the_setting_goes_on_without_it(tiny_config: Path, tmp_path: Path) -> None:
    stored = tmp_path / "run/config.yaml"
    train(tiny_config, tmp_path / "run")
    wanted = losses(tmp_path / "run")
    killed_after(tmp_path / "run", step=8)
    lines = stored.read_text().splitlines(keepends=True)
    older = [line for line in lines if not line.strip().startswith(("loss:", "train.loss:"))]
    assert len(older) == len(lines) - 2
    stored.write_text("".join(older))
    with pytest.raises(UsageError, match=r"with `train\.loss: plain`, not chunked"):
        train(tiny_config, tmp_path / "run", CHUNKED)
    train(tiny_config, tmp_path / "run")
    assert losses(tmp_path / "run") == wanted


@pytest.mark.parametrize(
    ("value", "every"),
    [("none", None), ("full", 1), (3, 3), ("auto", None), ("selective", 1), ("budget=0.5", None)],
)
def test_every_nth_block(value: object, every: int | None) -> None:
    from hotloop.core.config import RunConfig

    config = RunConfig.model_validate(
        {"data": {"source": "x"}, "train": {"activation_checkpointing": value}}
    )
    shape: DecoderShape = decoder_shape(config, 50)
    assert (shape.checkpoint_every, shape.loss_chunk) == (every, None)
    assert shape.keeps_products == (value == "selective")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (f"{AGAIN}=budget=1.5", "activation_checkpointing"),
        (f"{AGAIN}=0", "activation_checkpointing"),
        (f"{AGAIN}=budget=0.5", "the model is not compiled"),
        ("train.attention=efficient", "a kernel of GPUs"),
        ("train.attention=flex", "no backward on a CPU"),
        ("train.attention=flash model.dropout=0.1", "takes no dropout"),
    ],
)
def test_what_cannot_be_had_here_is_one_clear_error(
    tiny_config: Path, tmp_path: Path, setting: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        train(tiny_config, tmp_path, "train.compile=false", *setting.split())


def test_a_kernel_that_torch_itself_refuses_is_one_clear_error(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "decoder_shape", lambda *of: replace(decoder_shape(*of), attention="cudnn"))  # fmt: skip
    with pytest.raises(UsageError, match="cannot compute this model's attention"):
        train(tiny_config, tmp_path)
