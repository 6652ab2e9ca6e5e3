from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.doctor.directory import make_run_directory


def test_the_default_is_numbered_where_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [make_run_directory(None, "train") for _ in range(3)]
    assert [str(path.relative_to(tmp_path)) for path in made] == [
        "runs/doctor-train",
        "runs/doctor-train-2",
        "runs/doctor-train-3",
    ]
    assert all(path.is_absolute() for path in made)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "weights.pt").touch()
    with pytest.raises(UsageError, match="nothing is overwritten"):
        make_run_directory(tmp_path / "full", "x")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not a directory"):
        make_run_directory(tmp_path / "file", "x")


def test_a_path_through_a_file_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="a part of its path is a file"):
        make_run_directory(tmp_path / "file" / "sub", "x")


def test_an_empty_or_new_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert make_run_directory(tmp_path / "empty", "x") == (tmp_path / "empty").resolve()
    assert make_run_directory(tmp_path / "a" / "b", "x").is_dir()


def test_a_name_that_would_split_the_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="PYTHONPATH"):
        make_run_directory(tmp_path / "12:30", "x")
