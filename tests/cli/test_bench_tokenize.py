"""`hotloop bench tokenize` says what it measured, in words and in JSON."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

from hotloop.cli.main import run


def test_help_lists_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--help"]) == 0
    said = capsys.readouterr().out
    assert "tokenize  Text to shards" in said
    assert "loader    Batches per second" in said


def test_json_holds_what_can_be_worked_out_again(
    corpus_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("datasets")
    words = ["bench", "tokenize", str(corpus_directory), "--tokenizer", "bytes", "--check"]
    words += ["--rounds", "1", "--cores", "1", "--scratch", str(tmp_path)]
    assert run([*words, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "hotloop.bench_tokenize/1"
    assert found["sources"] == [str(corpus_directory)]
    assert (found["tokenizer"], found["cores"]) == ("bytes", 1)
    texts = [path.read_bytes() for path in corpus_directory.iterdir()]
    size = sum(len(text) for text in texts)
    assert found["bytes"] == size
    assert found["tokens"] == size + len(texts)  # a byte is an id, and each document has an end
    assert found["identical_to_reference"] is True
    assert found["reference_bytes_per_s"] > 0
    names = [each["name"] for each in found["contestants"]]
    assert names[:2] == ["hotloop prepare", f"{found['engine']}, text in memory"]
    assert names[2:] in (["datasets.map"], ["gigatoken, from files", "datasets.map"])
    for each in found["contestants"]:
        assert each["bytes"] == size
        assert len(each["seconds"]) == 1
        speed = each["bytes"] / statistics.median(each["seconds"])
        assert found["bytes_per_s"][each["name"]] == pytest.approx(speed)
    assert found["environment"]
    assert list(tmp_path.glob("hotloop-bench-*")) == []


def test_words_name_every_contestant_and_the_comparison(
    corpus_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("datasets")
    file = tmp_path / "found.json"
    words = ["bench", "tokenize", str(corpus_directory), "--tokenizer", "bytes", "--rounds", "1"]
    assert run([*words, "--cores", "1", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["identical_to_reference"] is None
    said = capsys.readouterr().out
    assert all(each["name"] in said for each in found["contestants"])
    assert "on the sample only (--check compares all)" in said


def test_missing_source_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datasets")
    assert run(["bench", "tokenize", "no/such/source"]) == 2
    assert "no such source" in capsys.readouterr().err


def test_without_datasets_the_extra_is_named(
    corpus_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    assert run(["bench", "tokenize", str(corpus_directory)]) == 2
    assert "pip install 'hotloop[hub]'" in capsys.readouterr().err
