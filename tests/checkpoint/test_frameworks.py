"""The Hugging Face Trainer and Lightning save with hotloop's checkpoints, and a killed training ends with the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hotloop.checkpoint


def end_of(script: str, directory: Path, kill_at: int) -> str:
    """What it printed, after it was killed at that step, or came to its end."""
    command = [sys.executable, str(Path(__file__).with_name(script)), str(directory), str(kill_at)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if kill_at < 0 else -signal.SIGKILL), done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("script", "needs"), [("hf_training.py", "accelerate"), ("lightning_training.py", "lightning")]
)
def test_killed_training_of_a_framework_ends_with_the_same_bits(
    tmp_path: Path, script: str, needs: str
) -> None:
    pytest.importorskip(needs)
    whole = end_of(script, tmp_path / "whole", -1)
    end_of(script, tmp_path / "killed", 14)
    resumed = end_of(script, tmp_path / "killed", -1)
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
