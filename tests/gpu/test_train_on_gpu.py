"""Run with `pytest tests/gpu -m gpu` on a machine that has one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hotloop.core.settings import load_settings
from hotloop.core.step import read_steps
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


def test_a_step_has_no_implicit_sync(tiny_config: Path, tmp_path: Path) -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        start(
            load_settings(tiny_config, ["train.device=cuda", "train.precision=bf16"]),
            tmp_path / "run",
            stop_after=8,
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(list(read_steps(tmp_path / "run/steps.jsonl"))) == 8


def test_gpu_and_cpu_train_alike(tiny_config: Path, tmp_path: Path) -> None:
    start(load_settings(tiny_config), tmp_path / "cpu")
    on_cpu = [record.loss for record in read_steps(tmp_path / "cpu/steps.jsonl")]
    assert losses(tiny_config, tmp_path / "gpu") == pytest.approx(on_cpu, rel=1e-4)
