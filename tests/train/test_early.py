"""Mistakes that are known before torch is loaded are answered before it is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.core.file_locks import locked, refuse_busy

WITHOUT_TORCH = """
import sys
from hotloop.cli.main import run
code = run(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.prepared=/nope", "no such prepared directory"),
        ("data.source=/nope", "no such source"),
        ("data.source=[/nope]", "no such source"),
        ("model.context=1000000", "one sequence of 1000000 needs 1000001"),
        ("train.init_from=/nope", "it has no config.json"),
    ],
)
def test_text_that_cannot_be_is_refused_before_torch_is_loaded(
    tiny_config: Path, tmp_path: Path, override: str, says: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "train", str(tiny_config), override],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert not (tmp_path / "runs").exists()


def test_directory_in_which_another_process_trains_is_refused_before_torch_is_loaded(
    tiny_config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with locked(out):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, "train", str(tiny_config), "--out", str(out)],
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 4, done.stderr
    assert "another process is training in this directory" in done.stderr
    refuse_busy(out)  # the lock went with its holder
