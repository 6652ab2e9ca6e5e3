"""Settings that are the same mathematics, and what continues a run, on a GPU. `pytest tests/gpu -m gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from device_trainings import MARKS, losses, records
from trainings import killed_after, weights
from trainings import records as recorded

from gpu_or_cpu import DEVICE, ON_GPU, only_there
from hotloop.checkpoint import store
from hotloop.core.settings import load_settings
from hotloop.hardware.device import pick_device, read_machine
from hotloop.optimizations.catalogue import resolve
from hotloop.train import loop
from hotloop.train.run import Run
from hotloop.train.start import start
from hotloop.train.trained import load_trained

pytestmark = MARKS
WIDE = ("model.width=64", "model.heads=2", "model.layers=2", "model.context=64")
BF16 = "train.precision=bf16"
FP16 = "train.precision=fp16"
SKIP = ("stability.nonfinite=skip", "stability.spikes=skip", "stability.window_steps=4")


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of a GPU that add up in one order: what a compiler makes of an embedding's backward adds in any."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(DEVICE == "cuda", warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@only_there
def test_auto_is_bf16_compiled_and_fused(tmp_path: Path) -> None:
    (tmp_path / "any.yaml").write_text("data: {source: python-stdlib}\n")
    device = pick_device("auto")
    assert device.type == "cuda"
    config, notes = resolve(load_settings(tmp_path / "any.yaml"), read_machine(device))
    chosen = config.config.flat()
    assert notes == ()
    assert chosen["train.precision"] == "bf16"
    assert chosen["train.compile"] is chosen["optimizer.fused"] is True
    assert chosen["train.clip"] == "fused"
    assert chosen["train.attention"] == "sdpa"


@pytest.mark.parametrize(
    "settings",
    [
        ("train.compile=true", "train.grad_accum_steps=2", "train.microbatch=2"),
        ("train.compile=blocks", "train.grad_accum_steps=2", "train.microbatch=2"),
        ("train.compile=true", "train.loss=chunked", "train.activation_checkpointing=budget=0.5"),
        ("train.compile=true", "train.activation_checkpointing=selective"),
        pytest.param(("train.compile=reduce-overhead",), marks=only_there),
        pytest.param(("train.compile=reduce-overhead", "averaging.name=ema"), marks=only_there),
    ],
    ids=" ".join,
)
def test_compiled_steps_learn_the_same_and_compile_once(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Evaluations and saves lie between the steps."""
    eager = losses(tiny_config, tmp_path / "eager", *WIDE)
    found = records(tiny_config, tmp_path / "compiled", *WIDE, *settings)
    assert [each.loss for each in found] == pytest.approx(eager, rel=1e-4)
    assert [each.step for each in found if "compile" in each.tags] == [0]


@pytest.mark.parametrize(
    ("settings", "within"),
    [
        pytest.param(("train.precision=tf32",), 5e-3, marks=only_there),
        pytest.param((FP16,), 5e-3, marks=only_there),
        ((BF16,), 2e-2),
        (("train.loss=chunked",), 1e-5),
        (("train.loss=chunked", BF16), 1e-2),
        (("train.loss=chunked", "model.pad_vocabulary_to=64"), 1e-5),
        (("train.activation_checkpointing=full",), 1e-6),
        (("train.activation_checkpointing=selective",), 1e-6),
        (("train.activation_checkpointing=2",), 1e-6),
        (("train.microbatch=1", "train.grad_accum_steps=4"), 1e-5),
        (("train.clip=builtin",), 1e-5),
        (("optimizer.fused=false", "train.clip=builtin"), 1e-5),
        (("averaging.name=tail",), 1e-6),
        (("data.prefetch=0",), 1e-6),
    ],
    ids=str,
)
def test_another_way_to_compute_the_same_has_the_same_losses(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...], within: float
) -> None:
    plain = losses(tiny_config, tmp_path / "plain", *WIDE)
    assert losses(tiny_config, tmp_path / "other", *WIDE, *settings) == pytest.approx(
        plain, rel=within
    )


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("optimizer.name=muon",),
        ("optimizer.name=muon", "optimizer.fused=false"),
        ("optimizer.name=sgd", "optimizer.learning_rate=0.1"),
        ("averaging.name=ema", "averaging.every_steps=1"),
    ],
    ids=" ".join,
)
def test_device_learns_and_averages_what_a_cpu_does(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    def evaluated(directory: Path, device: str) -> list[float]:
        words = [*WIDE, *settings, f"train.device={device}"]
        done = start(load_settings(tiny_config, words), directory)
        assert done.loss is not None
        assert done.held_out_loss is not None
        averaged = done.averaged_held_out_loss
        return [done.loss, done.held_out_loss, *([] if averaged is None else [averaged])]

    wanted = evaluated(tmp_path / "cpu", "cpu")
    assert evaluated(tmp_path / "device", DEVICE) == pytest.approx(wanted, rel=1e-3)
    assert len(wanted) == 2 + ("averaging.name=ema" in settings)


@pytest.mark.parametrize(
    "settings",
    [
        ("train.precision=fp32",),
        (BF16, "optimizer.name=muon", "averaging.name=ema", "averaging.every_steps=1"),
        (BF16, "train.compile=true", "train.loss=chunked"),
        ("checkpoint.background=true",),
        (BF16, *SKIP),
        pytest.param((FP16,), marks=only_there),
    ],
    ids=" ".join,
)
def test_a_killed_run_continues_to_the_same_bits(
    tiny_config: Path, tmp_path: Path, settings: tuple[str, ...], repeatable: None
) -> None:
    words = (*WIDE, "model.dropout=0.1", *settings)
    whole = losses(tiny_config, tmp_path / "whole", *words)
    assert losses(tiny_config, tmp_path / "again", *words) == whole
    # Saves beside the steps begin when they choose.
    *_, before, end = store.steps(tmp_path / "again/checkpoints")
    killed_after(tmp_path / "again", step=before)
    assert before < end == 12
    assert losses(tiny_config, tmp_path / "again", *words) == whole
    both = [weights(tmp_path / name) for name in ("whole", "again")]
    for file in both[0]:
        for name, tensor in both[0][file].items():
            assert torch.equal(tensor, both[1][file][name]), name


def test_a_trained_model_evaluates_and_is_loaded_on_the_device(
    tiny_config: Path, tmp_path: Path
) -> None:
    start(load_settings(tiny_config, [*WIDE, f"train.device={DEVICE}"]), tmp_path / "run")
    here = load_trained(tmp_path / "run", DEVICE).model
    there = load_trained(tmp_path / "run", "cpu").model
    assert next(here.parameters()).device.type == ("cuda" if ON_GPU else "cpu")
    tokens = torch.arange(40)[None]
    with torch.inference_mode():
        found, wanted = here.eval()(tokens.to(DEVICE)).cpu(), there.eval()(tokens)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@only_there
@pytest.mark.parametrize(
    "settings",
    [
        (BF16,),
        (BF16, *SKIP),
        (FP16, *SKIP),
        ("optimizer.name=sgd", *SKIP),
        ("optimizer.name=muon", *SKIP),
        ("train.clip_norm=null", *SKIP),
    ],
    ids=" ".join,
)
def test_a_step_has_no_implicit_sync(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    real = loop.update

    def watched(run: Run, *rest: Any) -> dict[str, torch.Tensor]:
        late = real(run, *rest)
        # Not before: building the model copies its weights to the GPU, which waits.
        torch.cuda.set_sync_debug_mode("error")
        return late

    monkeypatch.setattr(loop, "update", watched)
    words = [f"train.device={DEVICE}", *settings]
    try:
        start(load_settings(tiny_config, words), tmp_path / "run", stop_after=8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(recorded(tmp_path / "run")) == 8


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_update_of_a_gradient_that_is_no_number_is_left_out_to_the_last_bit(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = loop.update
    moved = []

    def poisoned(run: Run, *rest: Any) -> dict[str, torch.Tensor]:
        if len(moved) == 5:
            for parameter in run.model.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(float("nan"))
        before = [p.detach().clone() for p in run.model.parameters()]
        late = real(run, *rest)
        moved.append(not all(map(torch.equal, before, run.model.parameters())))
        return late

    monkeypatch.setattr(loop, "update", poisoned)
    found = records(tiny_config, tmp_path / "run", f"optimizer.name={name}", *SKIP)
    assert moved == [step != 5 for step in range(12)]
    assert [each.step for each in found if "skipped" in each.tags] == [5]
