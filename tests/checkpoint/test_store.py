from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.checkpoint import store
from hotloop.core.errors import EnvironmentFailed


def save(root: Path, step: int, value: float, keep: int = 2) -> store.Checkpoint:
    tensors = {"model": {"w": torch.full((100,), value)}}
    return store.save(root, step, tensors=tensors, state={"value": value}, keep=keep)


def value_of(checkpoint: store.Checkpoint | None) -> float:
    assert checkpoint is not None
    tensors, state = store.load(checkpoint, ("model",))
    assert tensors["model"]["w"].eq(state["value"]).all()
    return float(state["value"])


def test_newest_checkpoint_is_found_and_only_the_kept_ones_stay(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        save(tmp_path, step, float(step))
    found, problems = store.latest(tmp_path)
    assert value_of(found) == 10.0
    assert problems == ()
    assert sorted(d.name[:13] for d in tmp_path.iterdir()) == ["step-00000002", "step-00000010"]


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete"])
def test_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    save(tmp_path, 1, 1.0)
    newest = save(tmp_path, 2, 2.0).path / name
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
    elif damage == "truncate":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        newest.write_bytes(b"")
    else:
        newest.unlink()
    found, problems = store.latest(tmp_path)
    assert value_of(found) == 1.0
    if not (name == "manifest.json" and damage == "delete"):  # then it was never committed
        assert len(problems) == 1
        assert problems[0].startswith("step-00000002")


def test_flipping_any_sampled_byte_is_noticed(tmp_path: Path) -> None:
    directory = save(tmp_path, 1, 1.0).path
    for path in sorted(directory.iterdir()):
        original = path.read_bytes()
        for position in range(0, len(original), 37):
            content = bytearray(original)
            content[position] ^= 0x20
            path.write_bytes(content)
            problem = store.verify(directory)
            if path.name == "manifest.json" and problem is None:
                # White space and the step's digits carry no content; files and sums must.
                assert json.loads(content)["files"] == json.loads(original)["files"]
            else:
                assert problem is not None, (path.name, position)
        path.write_bytes(original)
    assert store.verify(directory) is None


def test_killed_before_the_manifest_means_never_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, 1.0)

    def killed(path: Path, content: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2, 2.0)
    found, problems = store.latest(tmp_path)
    assert value_of(found) == 1.0
    assert problems == ()
    assert len(list(tmp_path.iterdir())) == 2
    store.remove_uncommitted(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_full_disk_keeps_the_checkpoints_before_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, 1.0)

    def full(descriptor: int) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailed, match="no space left"):
        save(tmp_path, 2, 2.0)
    assert value_of(store.latest(tmp_path)[0]) == 1.0
    assert len(list(tmp_path.iterdir())) == 1


def test_manifest_that_names_a_file_outside_is_refused(tmp_path: Path) -> None:
    directory = save(tmp_path, 1, 1.0).path
    manifest = json.loads((directory / "manifest.json").read_bytes())
    manifest["files"]["../../etc/passwd"] = {"bytes": 0, "sha256": ""}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    assert "outside" in (store.verify(directory) or "")


def test_new_checkpoint_is_never_the_one_that_is_retired(tmp_path: Path) -> None:
    for step in (100, 200, 250):
        save(tmp_path, step, float(step), keep=3)
    for directory in tmp_path.glob("step-000002*"):
        (directory / "state.json").write_bytes(b"x")
    found, _ = store.latest(tmp_path)
    assert value_of(found) == 100.0
    store.set_aside(tmp_path, newer_than=100)
    save(tmp_path, 150, 150.0, keep=2)
    assert value_of(store.latest(tmp_path)[0]) == 150.0
    names = sorted(d.name[:13] for d in tmp_path.iterdir())
    assert names == ["damaged-step-", "damaged-step-", "step-00000100", "step-00000150"]


def test_full_disk_at_the_manifest_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, 1.0)

    def full(path: Path, content: bytes) -> None:
        raise EnvironmentFailed("no space left")

    monkeypatch.setattr(store, "write_atomically", full)
    with pytest.raises(EnvironmentFailed):
        save(tmp_path, 2, 2.0)
    assert len(list(tmp_path.iterdir())) == 1
