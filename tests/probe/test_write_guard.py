"""A script that is only tried writes nowhere but into its copy, and it is said where it wanted to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.core.child import OUTSIDE_FILE, WITHIN
from hotloop.probe.write_guard import WriteGuard
from script_runs import variables


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    path = tmp_path / "inside"
    path.mkdir()
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir()
    (path / "kept.txt").write_text("kept")
    return path


def run(inside: Path, script: str) -> tuple[int, list[str]]:
    """Exit code, and the paths that were refused."""
    # TMPDIR as trials have it: dill, that torch imports, looks for one.
    environment = variables() | {WITHIN: str(inside), "TMPDIR": str(inside)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=inside,
        env=environment,
        check=False,
        capture_output=True,
    )
    report = inside / OUTSIDE_FILE
    lines = report.read_text().splitlines() if report.exists() else []
    return done.returncode, [json.loads(line)["path"] for line in lines]


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(
    ("script", "path"),
    [
        ("open('{out}/kept.txt', 'a')", "kept.txt"),
        ("open('{out}/new.txt', 'x')", "new.txt"),
        ("open('../outside/new.txt', 'w')", "new.txt"),
        ("open('{out}/kept.txt', 'r+b')", "kept.txt"),
        ("import os; os.open('{out}/new.txt', os.O_CREAT | os.O_WRONLY)", "new.txt"),
        ("import os; os.remove('{out}/kept.txt')", "kept.txt"),
        ("import os; os.truncate('{out}/kept.txt', 0)", "kept.txt"),
        ("import os; os.makedirs('{out}/a/b', exist_ok=True)", "a"),
        ("import os; open('x', 'w').close(); os.replace('x', '{out}/kept.txt')", "kept.txt"),
        ("import os; os.rename('{out}/kept.txt', 'x')", "kept.txt"),
        ("import os; os.symlink('{out}', 'link'); open('link/kept.txt', 'w')", "kept.txt"),
        ("import shutil; shutil.rmtree('{out}')", ""),
        ("import torch; torch.save(1, '{out}/new.pt')", "new.pt"),
        ("import pathlib; pathlib.Path('{out}/new.txt').write_text('')", "new.txt"),
    ],
)
def test_nothing_outside_is_changed(inside: Path, outside: Path, script: str, path: str) -> None:
    code, paths = run(inside, script.replace("{out}", str(outside)))
    assert code == 1
    wanted = outside / path if path else outside
    assert [Path(each).resolve() for each in paths] == [wanted]
    assert [each.name for each in outside.iterdir()] == ["kept.txt"]
    assert (outside / "kept.txt").read_text() == "kept"


def test_reading_and_writing_inside_are_as_ever(inside: Path, outside: Path) -> None:
    script = f"""
import os, shutil, tempfile
assert open('{outside}/kept.txt').read() == 'kept'
os.makedirs('{outside}', exist_ok=True)
os.makedirs('a/b'); open('a/b/c.txt', 'w').write('x'); os.rename('a/b/c.txt', 'd.txt'); shutil.rmtree('a')
open(os.devnull, 'w').write('x')
"""
    assert run(inside, script) == (0, [])


def test_caches_may_be_written(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/models/hf")
    monkeypatch.setenv("HOME", "/home/someone")
    fence = WriteGuard([str(inside)])
    assert fence.may_write("/models/hf/hub/x")
    assert fence.may_write("/home/someone/.cache/torch/x")
    assert fence.may_write("/data/code/__pycache__/x.pyc")
    assert not fence.may_write("/home/someone/results/x.pt")
    assert not fence.may_write("/models/hf2/x")
    assert not fence.may_write(f"{inside}2/x")
