"""torchrun with NCCL: one rank anywhere, two where there are two GPUs. `pytest tests/gpu -m gpu`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trainings import losses, train

from gpu_or_cpu import ON_A_GPU, only_there

pytestmark = [*ON_A_GPU, only_there]
STEP = ("train.device=cuda", "train.microbatch=2", "train.grad_accum_steps=4", "train.steps=8")


def on_ranks(num_ranks: int, config: Path, directory: Path, *overrides: str) -> None:
    if torch.cuda.device_count() < num_ranks:
        pytest.skip(f"needs {num_ranks} GPUs")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={num_ranks}", "-m", "hotloop", "train", str(config)),
            *(*STEP, *overrides, "--out", str(directory)),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ((), 1e-4),
        (("train.gradient_compression=bf16",), 2e-2),
        (("train.compile=true",), 1e-4),
        (("train.precision=fp16",), 5e-3),
        (("stability.spikes=skip", "stability.window_steps=4"), 1e-4),
    ],
)
def test_ranks_learn_what_one_process_learns(
    tiny_config: Path, tmp_path: Path, num_ranks: int, settings: tuple[str, ...], tolerance: float
) -> None:
    train(tiny_config, tmp_path / "alone", *STEP)
    on_ranks(num_ranks, tiny_config, tmp_path / "ranks", *settings)
    assert losses(tmp_path / "ranks") == pytest.approx(losses(tmp_path / "alone"), rel=tolerance)
    census = json.loads((tmp_path / "ranks/census.json").read_text())
    assert census["num_ranks"] == num_ranks
    assert census["device"] == "cuda:0"


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_ranks_continue_from_their_checkpoint_to_the_same_bits(
    tiny_config: Path, tmp_path: Path, num_ranks: int
) -> None:
    settings = ("model.dropout=0.1", "checkpoint.every_steps=4", "train.precision=fp32")
    on_ranks(num_ranks, tiny_config, tmp_path / "whole", *settings)
    on_ranks(num_ranks, tiny_config, tmp_path / "again", *settings)
    (newest,) = (tmp_path / "again/checkpoints").glob("step-00000008-*")
    (newest / "manifest.json").unlink()  # as if killed before its end
    on_ranks(num_ranks, tiny_config, tmp_path / "again", *settings)
    assert losses(tmp_path / "again") == losses(tmp_path / "whole")
