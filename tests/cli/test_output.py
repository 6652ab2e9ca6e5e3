from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from hotloop.cli.main import run
from hotloop.cli.output import refuse_unwritable, write_object
from hotloop.core.errors import UsageError


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    write_object({"a": 1}, str(fifo))
    reader.join(timeout=120)
    assert json.loads(read[0]) == {"a": 1}
    assert fifo.is_fifo()


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "target.json").write_text("old")
    (tmp_path / "link.json").symlink_to("target.json")
    write_object({"a": 1}, str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "target.json").read_text()) == {"a": 1}


def test_missing_directory_is_said_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        write_object({}, str(tmp_path / "none" / "a.json"))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *(["train", "x.yaml"], ["generate", "."], ["export", ".", "--out", "x"], ["report", "."]),
        *(["quickstart"], ["env"], ["monitor", "--system"], ["bench", "loader"]),
        *(["prepare", "--verify", "."], ["doctor", "--", "python"]),
    ],
    ids=" ".join,
)
def test_json_into_a_missing_directory_is_refused_before_the_work(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text("data: {source: python-stdlib}\n")
    monkeypatch.setitem(sys.modules, "hotloop.train.start", None)  # a training would end otherwise
    split = 2 if arguments[0] == "bench" else 1
    code = run([*arguments[:split], "--json", "/nope/x", *arguments[split:]])
    assert code == 2
    assert capsys.readouterr().err == (
        "error: no such directory\n  at /nope\n  make it, or choose another file for --json\n"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["x.yaml"]


def test_json_into_the_directory_that_comes_with_the_work_is_not_refused(tmp_path: Path) -> None:
    refuse_unwritable(str(tmp_path / "run" / "x.json"), made=tmp_path / "run")
    with pytest.raises(UsageError, match="no such directory"):
        refuse_unwritable(str(tmp_path / "else" / "x.json"), made=tmp_path / "run")
    with pytest.raises(UsageError, match="a directory, not a file"):
        refuse_unwritable(str(tmp_path), made=None)
    refuse_unwritable("/dev/null", made=None)
