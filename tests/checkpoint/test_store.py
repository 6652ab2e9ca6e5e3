from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.checkpoint import store
from hotloop.checkpoint.state import FILES
from hotloop.core.errors import EnvironmentFailed, UsageError


def save(root: Path, step: int, value: float, keep: int = 2) -> store.Checkpoint:
    tensors = {name: {"w": torch.full((100,), value)} for name in FILES}
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


def test_manifest_that_the_disk_cannot_look_up_is_an_error_and_nothing_is_deleted(
    tmp_path: Path,
) -> None:
    manifest = save(tmp_path, 1, 1.0).path / "manifest.json"
    whole = manifest.rename(tmp_path / "manifest.json")
    manifest.symlink_to(
        manifest.name
    )  # to itself: neither there nor missing, as on a disk with errors
    for look in (store.remove_uncommitted, store.latest, store.steps, store.entries):
        with pytest.raises(EnvironmentFailed, match="cannot look for the manifest"):
            look(tmp_path)
    manifest.unlink()
    whole.rename(manifest)
    assert store.remove_uncommitted(tmp_path) == ()
    assert value_of(store.latest(tmp_path)[0]) == 1.0


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


def test_error_of_the_last_flush_is_one_of_the_disk_and_nothing_is_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save(tmp_path / "checkpoints", step, float(step))
    real = store.fsync_directory

    def broken(path: Path) -> None:
        if path == tmp_path / "checkpoints":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path)

    monkeypatch.setattr(store, "fsync_directory", broken)
    with pytest.raises(EnvironmentFailed, match="Input/output error"):
        save(tmp_path / "checkpoints", 3, 3.0)
    assert store.steps(tmp_path / "checkpoints") == (1, 2, 3)


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


def rewrite(directory: Path, **changes: Any) -> None:
    manifest = json.loads((directory / "manifest.json").read_bytes())
    (directory / "manifest.json").write_text(json.dumps(manifest | changes))


def test_step_is_that_of_the_manifest_and_not_of_a_renamed_directory(tmp_path: Path) -> None:
    save(tmp_path, 10, 10.0)
    newest = save(tmp_path, 60, 60.0).path
    renamed = newest.rename(newest.with_name("step-00000099-aaaaaaaa"))
    found, problems = store.latest(tmp_path)
    assert value_of(found) == 10.0
    assert "of step 60" in problems[0]
    assert "renamed" in (store.verify(renamed) or "")


@pytest.mark.parametrize("left_out", [*(f"{name}.safetensors" for name in FILES), "state.json"])
def test_a_manifest_that_leaves_a_file_out_does_not_verify(tmp_path: Path, left_out: str) -> None:
    directory = save(tmp_path, 1, 1.0).path
    files = json.loads((directory / "manifest.json").read_bytes())["files"]
    del files[left_out]
    rewrite(directory, files=files)
    assert left_out in (store.verify(directory) or "")
    rewrite(directory, files={})
    assert "does not list" in (store.verify(directory) or "")


def test_step_directories_may_be_links_and_only_the_links_are_retired(tmp_path: Path) -> None:
    root, disk = tmp_path / "checkpoints", tmp_path / "disk"
    disk.mkdir()
    for step in (1, 2):
        moved = save(root, step, float(step)).path.rename(disk / f"moved-{step}")
        (root / f"step-{step:08d}-0000000{step}").symlink_to(moved)
    assert value_of(store.latest(root)[0]) == 2.0
    save(root, 3, 3.0)
    assert sorted(d.name[:13] for d in root.iterdir()) == ["step-00000002", "step-00000003"]
    assert store.verify(root / "step-00000002-00000002") is None
    assert sorted(path.name for path in (disk / "moved-1").iterdir()) == sorted(
        path.name for path in (disk / "moved-2").iterdir()
    )
    (disk / "moved-2").rename(disk / "unplugged")
    (next(root.glob("step-00000003-*")) / "state.json").write_text("x")
    found, problems = store.latest(root)
    assert found is None
    assert [problem[:13] for problem in problems] == ["step-00000003", "step-00000002"]
    assert "link leads nowhere" in problems[1]


def test_what_was_removed_without_a_manifest_is_named(tmp_path: Path) -> None:
    save(tmp_path, 1, 1.0)
    newest = save(tmp_path, 2, 2.0).path
    (newest / "manifest.json").unlink()
    assert store.remove_uncommitted(tmp_path) == (newest.name,)


@pytest.mark.parametrize("name", ["model", "state"])
@pytest.mark.parametrize("content", [b"\x80\x04\x95pickle", b"", b"[" * 5000, b"[]", b"\xff{}"])
def test_content_that_hotloop_never_wrote_is_a_usage_error(
    tmp_path: Path, name: str, content: bytes
) -> None:
    checkpoint = save(tmp_path, 1, 1.0)
    file = "state.json" if name == "state" else "model.safetensors"
    (checkpoint.path / file).write_bytes(content)
    with pytest.raises(UsageError, match="not a checkpoint that hotloop wrote") as caught:
        store.load(checkpoint, FILES)
    assert file in str(caught.value)


def test_only_files_of_the_manifest_are_read(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1, 1.0)
    (checkpoint.path / "average.safetensors").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"it has no average\.safetensors"):
        store.load(checkpoint, ("average",))


def test_checkpoints_from_before_a_streak_are_not_retired_by_those_within(tmp_path: Path) -> None:
    tensors = {name: {"w": torch.zeros(3)} for name in FILES}

    def at(step: int, good_until: int | None) -> list[int]:
        store.save(tmp_path, step, tensors=tensors, state={}, keep=2, good_until=good_until)
        return sorted(int(d.name[5:13]) for d in tmp_path.iterdir())

    assert at(5, None) == [5]
    assert at(10, None) == [5, 10]
    assert at(15, 11) == [5, 10, 15]
    assert at(20, 11) == [5, 10, 20]
    assert at(25, None) == [20, 25]


def test_a_checkpoint_of_a_step_is_found_or_those_that_are_there_are_named(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        save(tmp_path, step, float(step), keep=3)
    assert value_of(store.of_step(tmp_path, 10)) == 10.0
    with pytest.raises(UsageError, match="no checkpoint of step 7") as caught:
        store.of_step(tmp_path, 7)
    assert "5, 10, 15" in str(caught.value)
    store.set_aside(tmp_path, newer_than=5)
    assert value_of(store.latest(tmp_path)[0]) == 5.0
    assert store.newest_seen(tmp_path) == 15
    assert len(list(tmp_path.glob("left-step-000000*"))) == 2
    save(tmp_path, 10, 10.5, keep=3)
    store.set_aside(tmp_path, newer_than=5)
    assert len(list(tmp_path.glob("left-step-000000*"))) == 2, "one of each step, the newest"


@pytest.mark.usefixtures("without_compiler")
def test_file_that_may_not_grow_so_large_is_a_disk_that_refuses(tmp_path: Path) -> None:
    """The library that writes tensors has an error of its own for it."""
    program = (
        "import resource, sys; from pathlib import Path; import torch; from hotloop.checkpoint import store\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "tensors = {'model': {'w': torch.zeros(100_000)}}\n"
        "store.save(Path(sys.argv[1]), 1, tensors=tensors, state={}, keep=2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "EnvironmentFailed: cannot save a checkpoint: File too large" in done.stderr
    assert not list(tmp_path.iterdir())


def test_files_may_be_read_by_those_who_may_read_the_manifest(tmp_path: Path) -> None:
    found = save(tmp_path, 1, 1.0)
    assert {each.stat().st_mode & 0o777 for each in found.path.iterdir()} == {0o644}
