"""The Hugging Face Trainer and Lightning save with hotloop's checkpoints, and a killed training ends with the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hotloop.checkpoint

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
    ("script", "needs", "loads"),
    [
        (
            "hf_training.py",
            "accelerate",
            "transformers.trainer transformers.models.gpt2.modeling_gpt2",
        ),
        ("lightning_training.py", "lightning", "lightning.pytorch"),
    ],
)
def test_killed_training_of_a_framework_ends_with_the_same_bits(
    tmp_path: Path, script: str, needs: str, loads: str
) -> None:
    pytest.importorskip(needs)
    path = str(Path(__file__).with_name(script))
    command = [sys.executable, "-c", FORKS, path, loads, "whole -1", "killed 14", "killed -1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", str(-signal.SIGKILL.value), "0"], done.stderr
    whole, _, resumed = ((tmp_path / f"said-{number}").read_text() for number in range(3))
    assert "resumed None" in whole
    assert "resumed None" not in resumed
    assert whole.split("end ")[1] == resumed.split("end ")[1]


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
