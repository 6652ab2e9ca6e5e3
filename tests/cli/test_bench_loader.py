"""`hotloop bench loader` says what it measured, in words and in JSON."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from hotloop.cli.main import run
from hotloop.data.prepare import ensure_prepared
from hotloop.data.prepared import open_prepared
from hotloop.data.spec import Spec


def test_both_loaders_are_measured_over_the_same_ids(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "found.json"
    words = ["bench", "loader", str(prepared), "--batch", "4", "--context", "16", "--rounds", "3"]
    assert run([*words, "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["schema"] == "hotloop.bench_loader/1"
    assert found["same_ids"] is True
    names = [each["name"] for each in found["contestants"]]
    assert names == ["hotloop", "hotloop, packed", "DataLoader, 0 workers", "DataLoader, 2 workers"]
    for each in found["contestants"]:
        assert len(each["seconds"]) == 3
        assert min(each["seconds"]) > 0
        assert each["batches_per_round"] >= 1
    said = capsys.readouterr().out
    assert all(name in said for name in names)


def test_json_on_stdout_is_all_of_it_and_adds_up(
    corpus_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From a source, which is prepared first."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    words = [str(corpus_directory), "--batch", "2", "--context", "8", "--rounds", "3"]
    assert run(["bench", "loader", *words, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["batch"], found["context"], found["rounds"]) == (2, 8, 3)
    train = open_prepared(ensure_prepared(Spec((str(corpus_directory),)))).train
    assert found["tokens_in_corpus"] == len(train)
    for each in found["contestants"]:
        speed = each["batches_per_round"] * 2 * 8 / statistics.median(each["seconds"])
        assert found["tokens_per_s"][each["name"]] == pytest.approx(speed)
    assert found["environment"]


def test_missing_source_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "loader", "no/such/source"]) == 2
    assert "no such source" in capsys.readouterr().err


def test_tokenizer_of_what_is_prepared_is_refused(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "loader", str(prepared), "--tokenizer", "bytes"]) == 2
    assert "--tokenizer has no effect" in capsys.readouterr().err


def test_corpus_smaller_than_a_batch_is_refused(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    assert run(["bench", "loader", str(prepared), "--batch", "100000"]) == 2
    assert "one batch takes 100000" in capsys.readouterr().err
