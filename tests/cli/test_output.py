from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from hotloop.cli.output import write_object
from hotloop.core.errors import UsageError


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    write_object({"a": 1}, str(fifo))
    reader.join(timeout=10)
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
