"""A rank that cannot do what its coordinator would do says so, and does nothing."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.data.cluster import round as round_module
from hotloop.data.cluster.round import Round, Work, versions
from hotloop.data.jobs import Recipe, Task
from hotloop.data.sources import ReadOptions

pytest.importorskip("datatrove")
from hotloop.data.cluster.rank import do_rank


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.chdir(tmp_path)  # a rank changes it
    recipe = Recipe(
        tokenizer="",
        end_of_text=0,
        seed=0,
        held_out_below=0,
        reading=ReadOptions(),
        sources=(),
        shard_tokens=1,
        quick=False,
    )
    return Work(
        task=Task(tmp_path, b"", recipe, 1),
        jobs=(),
        engine="reference",
        cpus=1,
        directory=str(tmp_path),
        with_parent=False,
    )


def failure_of(begun: Round) -> str:
    """Of a rank whose failure ends the others as well."""
    with pytest.raises(RuntimeError):
        do_rank(begun.path, 0, 1)
    (failure,) = begun.failures()
    assert begun.stopped
    return str(failure)


def test_other_version_of_the_tokenizer_library_is_refused(
    tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**versions(), "tokenizers": "0.0.1"}
    monkeypatch.setattr(round_module, "versions", lambda: other)
    begun = Round.begin(tmp_path, work)
    monkeypatch.undo()
    what = failure_of(begun)
    assert "tokenizers" in what
    assert "0.0.1 where the preparation was started" in what


def test_other_version_is_refused_before_anything_of_it_is_loaded(
    tmp_path: Path, work: Work
) -> None:
    begun = Round.begin(tmp_path, work)
    (begun.path / "work.pickle").write_bytes(pickle.dumps(({"hotloop": "0"}, b"not a pickle")))
    assert "hotloop" in failure_of(begun)


def test_directory_that_is_not_shared_is_said(tmp_path: Path, work: Work) -> None:
    begun = Round.begin(tmp_path, replace(work, directory=str(tmp_path / "elsewhere")))
    assert "the directory is not there on" in failure_of(begun)


def test_rank_of_a_round_that_was_taken_away_leaves_nothing(tmp_path: Path, work: Work) -> None:
    begun = Round.begin(tmp_path, work)
    begun.remove()
    with pytest.raises(RuntimeError, match="storage that all machines share"):
        do_rank(begun.path, 0, 1)
    assert not begun.path.exists()
