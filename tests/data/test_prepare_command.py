"""The command says what it did and what it left out."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from hotloop.cli.prepare import prepare
from hotloop.core.errors import UsageError


def test_answer_comes_first_with_what_was_skipped(corpus: Path, tmp_path: Path) -> None:
    (corpus / "picture.png").write_bytes(b"\0")
    arguments = [str(corpus), "--out", str(tmp_path / "out"), "--tokenizer", "bytes"]
    done = CliRunner().invoke(prepare, [*arguments, "--json", str(tmp_path / "found.json")])
    assert done.exit_code == 0
    assert " tokens of 40 documents in " in done.stdout.splitlines()[0]
    assert "1 of " in done.stdout
    assert ": binary" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["outcome"] == "written"
    assert found["manifest"]["schema"] == "hotloop.prepared/2"
    again = CliRunner().invoke(prepare, [*arguments, "--json", "-"])
    assert json.loads(again.stdout)["outcome"] == "up_to_date"
    assert CliRunner().invoke(prepare, arguments).stdout.startswith("up to date: ")


def test_verify_says_whole_or_what_is_damaged(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    CliRunner().invoke(prepare, [str(corpus), "--out", str(out), "--tokenizer", "bytes"])
    found = CliRunner().invoke(prepare, ["--verify", str(out)])
    assert found.exit_code == 0
    assert found.stdout.startswith("whole: 5 files, ")
    (out / "train-00000.bin").write_bytes(b"")
    damaged = CliRunner().invoke(prepare, ["--verify", str(out)])
    assert isinstance(damaged.exception, UsageError)
    assert "train-00000.bin: 0 bytes instead of" in damaged.stdout


def test_without_sources_or_tokenizer_it_says_which_is_missing(tmp_path: Path) -> None:
    for arguments, missing in (([], "SOURCE"), (["a"], "--out"), (["a", "--out", "b"], "--token")):
        done = CliRunner().invoke(prepare, arguments)
        assert isinstance(done.exception, UsageError)
        assert f"no {missing}" in done.exception.what
