"""`hotloop bench loader` says what it measured, in words and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotloop.cli.main import run


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


def test_corpus_smaller_than_a_batch_is_refused(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    assert run(["bench", "loader", str(prepared), "--batch", "100000"]) == 2
    assert "one batch takes 100000" in capsys.readouterr().err
