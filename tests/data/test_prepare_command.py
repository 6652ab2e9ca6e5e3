"""The command says what it did and what it left out."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from hotloop.cli.prepare import prepare
from hotloop.core.errors import UsageError
from preparing import prepare_text


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


@pytest.mark.parametrize("content", ["", '{"text": null}\n' * 3])
def test_source_without_text_leaves_nothing_and_promises_nothing(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    out = tmp_path / "out"
    for tokenizer in ("bytes", "train:300"):
        with pytest.raises(UsageError, match="holds no text") as caught:
            prepare_text([str(tmp_path / "a.jsonl")], out, tokenizer=tokenizer)
        assert "is kept" not in str(caught.value)
        assert not out.exists()


def test_one_source_without_text_among_several_keeps_what_the_others_gave(tmp_path: Path) -> None:
    for name, text in (("a", "null"), ("b", '"x"')):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": {text}}}\n' * 9)
    out = tmp_path / "out"
    sources = [str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")]
    with pytest.raises(UsageError, match="holds no text") as caught:
        prepare_text(sources, out, tokenizer="bytes", job_bytes=1)
    assert "the next command continues from there" in str(caught.value)
    done = prepare_text(sources[:1], out, tokenizer="bytes", job_bytes=1)
    assert done.encoding is None or done.encoding.jobs == 0


def test_read_only_directory_that_is_up_to_date_is_fine() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        (root / "a.txt").write_text("some text")
        arguments = [str(root / "a.txt"), "--out", str(root / "out"), "--tokenizer", "bytes"]
        assert CliRunner().invoke(prepare, arguments).exit_code == 0
        (root / "out").chmod(0o555)
        am_root = os.geteuid() == 0
        try:
            if am_root:  # who may write everywhere
                os.seteuid(65534)
            done = CliRunner().invoke(prepare, arguments)
            other = CliRunner().invoke(prepare, [*arguments, "--seed", "3"])
        finally:
            if am_root:
                os.seteuid(0)
            (root / "out").chmod(0o755)
        assert (done.exit_code, done.stdout[:12]) == (0, "up to date: ")
        assert isinstance(other.exception, UsageError)
        assert "another preparation" in str(other.exception)
