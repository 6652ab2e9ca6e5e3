"""The Hugging Face Trainer, Lightning and Accelerate save with hotloop's checkpoints, and a killed training ends with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import hotloop.checkpoint
from hotloop.core.errors import UsageError

FORKS = """
import importlib, os, runpy, sys
script, loads, *runs = sys.argv[1:]
for name in loads.split():
    importlib.import_module(name)
for number, run in enumerate(runs):
    if not (pid := os.fork()):
        os.dup2(os.open(f"said-{number}", os.O_WRONLY | os.O_CREAT), 1)
        sys.argv = [script, *run.split()]
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Runs of a script one after the other: what it loads is loaded once, six seconds."""


@pytest.mark.parametrize(
    ("script", "needs", "loads", "kills"),
    [
        (
            "hf_training.py",
            "accelerate",
            "transformers.trainer transformers.models.gpt2.modeling_gpt2",
            ["14"],
        ),
        ("lightning_training.py", "lightning", "lightning.pytorch", ["14"]),
        # Before the last batch of an epoch, when Accelerate has fetched it, and after it.
        ("accelerate_training.py generator", "accelerate", "accelerate torch._dynamo", ["5", "12"]),
        ("accelerate_training.py seedable", "accelerate", "accelerate torch._dynamo", ["5", "12"]),
    ],
)
def test_killed_training_of_a_framework_ends_with_the_same_bits(
    tmp_path: Path, script: str, needs: str, loads: str, kills: list[str]
) -> None:
    pytest.importorskip(needs)
    name, _, kind = script.partition(" ")
    path = str(Path(__file__).with_name(name))
    runs = [f"whole -1 {kind}", *(f"killed {step} {kind}" for step in (*kills, -1))]
    command = [sys.executable, "-c", FORKS, path, loads, *runs]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    codes = ["0", *[str(-signal.SIGKILL.value)] * len(kills), "0"]
    assert done.stdout.split() == codes, done.stderr
    said = [(tmp_path / f"said-{number}").read_text() for number in range(len(runs))]
    whole, resumed = said[0], said[-1]
    assert "resumed None" in whole
    assert "resumed None" not in resumed
    assert whole.split("end ")[1] == resumed.split("end ")[1]


@pytest.mark.slow
def test_two_killed_processes_of_accelerate_end_with_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    script = str(Path(__file__).with_name("accelerate_training.py"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script]
    ends = []
    for run in ("whole -1 generator", "killed 5 generator", "killed -1 generator"):
        command = [*torchrun, *run.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
        lines = [line.split()[:3] for line in done.stdout.splitlines() if line.startswith("end ")]
        ends.append(lines)
    assert "resumed 5" in done.stdout
    whole, killed, resumed = ends
    assert len(whole) == 2
    assert whole[0] == whole[1]
    assert not killed
    assert resumed == whole


def test_loader_of_accelerate_yields_the_same_and_tells_it_where_the_data_ends() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    state = accelerator.gradient_state
    found = []
    for wrap in (lambda loader: loader, hotloop.checkpoint.ResumableLoader):
        torch.manual_seed(0)
        loader = wrap(accelerator.prepare(DataLoader([*range(10)], 4, shuffle=True)))
        assert len(loader) == 3
        found.append([(x.tolist(), state.end_of_dataloader, state.remainder) for _ in range(2) for x in loader])  # fmt: skip
    assert found[0] == found[1]
    assert [each[1:] for each in found[1]] == [(False, 2), (False, 2), (True, 2)] * 2


def test_loader_of_accelerate_without_a_position_is_refused(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader([1, 2]))
    with pytest.raises(UsageError, match=r"`loader` is a DataLoaderShard(?s:.*)wrap it"):
        hotloop.checkpoint.Checkpointer(tmp_path).save(1, loader=prepared)
    one = accelerate.data_loader.DataLoaderDispatcher([1, 2])
    with pytest.raises(UsageError, match="with dispatch_batches=True only one process"):
        hotloop.checkpoint.ResumableLoader(one)


def test_missing_library_is_named() -> None:
    for name, library in (
        ("TransformersCallback", "transformers"),
        ("LightningCheckpointIO", "lightning"),
    ):
        if find_spec(library) is None:
            with pytest.raises(
                ModuleNotFoundError, match=f"{name} needs {library}: pip install {library}"
            ):
                getattr(hotloop.checkpoint, name)
