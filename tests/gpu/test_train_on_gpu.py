"""Run with `pytest tests/gpu -m gpu` on a machine that has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.core.settings import load_settings
from hotloop.core.step import read_steps
from hotloop.train import loop
from hotloop.train.run import Run
from hotloop.train.start import start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def losses(config: Path, directory: Path, *overrides: str) -> list[float]:
    start(load_settings(config, ["train.device=cuda", *overrides]), directory)
    found = [record.loss for record in read_steps(directory / "steps.jsonl")]
    return [loss for loss in found if loss is not None]


@pytest.mark.parametrize(
    ("setting", "tolerance"),
    [
        ("train.precision=tf32", 5e-3),
        ("train.precision=bf16", 2e-2),
        ("train.precision=fp16", 5e-3),
        ("train.attention=plain", 1e-4),
        ("train.compile=true", 1e-4),
    ],
)
def test_settings_train_to_the_losses_of_fp32(
    tiny_config: Path, tmp_path: Path, setting: str, tolerance: float
) -> None:
    plain = losses(tiny_config, tmp_path / "plain")
    assert losses(tiny_config, tmp_path / "other", setting) == pytest.approx(plain, rel=tolerance)


SKIP = ("stability.nonfinite=skip", "stability.spikes=skip", "stability.window_steps=4")


@pytest.mark.parametrize(
    "settings",
    [
        ("train.precision=bf16",),
        ("train.precision=bf16", *SKIP),
        ("train.precision=fp16", *SKIP),
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
    try:
        start(
            load_settings(tiny_config, ["train.device=cuda", *settings]),
            tmp_path / "run",
            stop_after=8,
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(list(read_steps(tmp_path / "run/steps.jsonl"))) == 8


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
    losses(tiny_config, tmp_path / "run", f"optimizer.name={name}", *SKIP)
    assert moved == [step != 5 for step in range(12)]
    tagged = [r.step for r in read_steps(tmp_path / "run/steps.jsonl") if "skipped" in r.tags]
    assert tagged == [5]


def test_gpu_and_cpu_train_alike(tiny_config: Path, tmp_path: Path) -> None:
    start(load_settings(tiny_config), tmp_path / "cpu")
    on_cpu = [record.loss for record in read_steps(tmp_path / "cpu/steps.jsonl")]
    assert losses(tiny_config, tmp_path / "gpu") == pytest.approx(on_cpu, rel=1e-4)
