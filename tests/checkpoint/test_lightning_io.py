"""What `LightningCheckpointIO` keeps and removes, called as a Trainer calls it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hotloop.checkpoint
from hotloop.core.errors import EnvironmentFailed


@pytest.fixture
def io(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Of Lightning it needs the base alone, which does nothing: where that is missing, another one."""
    missing = find_spec("lightning") is None
    if missing:
        base = SimpleNamespace(CheckpointIO=object)
        monkeypatch.setitem(sys.modules, "lightning.pytorch.plugins.io", base)
    yield hotloop.checkpoint.LightningCheckpointIO()
    if missing:
        del sys.modules["hotloop.checkpoint.lightning_io"]


def test_what_waits_to_be_removed_stays_where_the_save_after_it_fails(
    io: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    first = tmp_path / "first.ckpt"
    io.save_checkpoint({"global_step": 1}, first)
    io.save_checkpoint({"global_step": 2}, tmp_path / "file" / "second.ckpt")
    io.remove_checkpoint(first)
    with pytest.raises(EnvironmentFailed, match="is a file, not a directory"):
        io.save_checkpoint({"global_step": 3}, tmp_path / "third.ckpt")
    io.teardown()  # as the Trainer does after an error
    assert io.load_checkpoint(first) == {"global_step": 1}
    io.save_checkpoint({"global_step": 4}, tmp_path / "fourth.ckpt")
    io.remove_checkpoint(first)
    io.teardown()
    assert not first.exists()


def test_last_save_to_a_path_is_the_only_one_there(io: Any, tmp_path: Path) -> None:
    path = tmp_path / "final.ckpt"
    for step in (990, 1000):
        io.save_checkpoint({"global_step": step}, path)
    io.teardown()
    (path / "step-00001010-0123abcd").mkdir()  # of a save that was killed
    io.save_checkpoint({"global_step": 100}, path)  # of another run
    assert io.load_checkpoint(path) == {"global_step": 100}
    assert [each.name[:13] for each in path.iterdir()] == ["step-00000100"]
