"""The command says what it did and what it left out."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from hotloop.cli.prepare import prepare


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
    assert found["manifest"]["schema"] == "hotloop.prepared/1"
    again = CliRunner().invoke(prepare, [*arguments, "--json", "-"])
    assert json.loads(again.stdout)["outcome"] == "up_to_date"
    assert CliRunner().invoke(prepare, arguments).stdout.startswith("up to date: ")
