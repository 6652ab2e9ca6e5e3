"""Lines of the script beside what is said of them: as they were when it ran, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotloop.core.command_run import CommandRun
from hotloop.runs.source_lines import source_lines

SITES = ("train.py:2", "train.py:3", "train.py:9", "train.py:0", "train.py", "train.py:²", None)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Of a script whose second line is `  b()`, last changed at second 100."""
    found = tmp_path / "work"
    found.mkdir()
    (found / "train.py").write_text("a()\n  b()\n\n")
    os.utime(found / "train.py", (100, 100))
    return found


def run(workdir: Path, started_at: float = 200.0) -> CommandRun:
    return CommandRun(("python", "train.py"), str(workdir), started_at, "0.1.0")


def test_a_site_gets_the_text_of_its_line(tmp_path: Path, workdir: Path) -> None:
    assert source_lines(tmp_path, run(workdir), SITES) == {"train.py:2": "b()"}


def test_a_file_that_was_changed_since_is_read_as_it_was_kept_or_not_at_all(
    tmp_path: Path, workdir: Path
) -> None:
    assert source_lines(tmp_path, run(workdir, started_at=50.0), SITES) == {}
    kept = tmp_path / "before" / "files"
    kept.mkdir(parents=True)
    (kept / "train.py").write_text("\nas_it_was()\n")
    assert source_lines(tmp_path, run(workdir, started_at=50.0), SITES) == {
        "train.py:2": "as_it_was()"
    }


def test_no_file_outside_of_the_working_directory_is_read(tmp_path: Path, workdir: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("password\n")
    os.utime(secret, (100, 100))
    (workdir / "link.py").symlink_to(secret)
    (workdir / "notes.txt").write_text("password\n")
    os.utime(workdir / "notes.txt", (100, 100))
    sites = ("../secret.py:1", f"{secret}:1", "link.py:1", "notes.txt:1", "\0.py:1", ".py:1")
    assert source_lines(tmp_path, run(workdir), sites) == {}
