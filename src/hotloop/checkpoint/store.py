"""The commit protocol: a checkpoint is a fresh directory, and a manifest that verifies is its commit.

A step directory is never written twice. Files are written, flushed to the disk and hashed; the
directory is flushed; the manifest, with every file's size and SHA-256, is renamed into place last.
A process killed at any instant leaves either a checkpoint that verifies or a directory without a
manifest, which the next run ignores and removes. Older checkpoints are deleted only after a newer one
has been committed. Tensors are safetensors and the rest is JSON: nothing that is read can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import fsync_directory, storage_error, write_atomically

MANIFEST_SCHEMA = "hotloop.checkpoint/1"
_DIRECTORY = re.compile(r"step-(\d{8})-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint."""

    path: Path
    step: int
    """Steps completed when it was taken: training continues with the step of this number."""


def save(
    root: Path,
    step: int,
    *,
    tensors: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    keep: int,
) -> Checkpoint:
    """Write and commit a checkpoint under `root`, then delete all but the newest `keep`.

    `tensors` maps a file's name to its tensors; `state` is everything else, JSON-ready.
    Raises `EnvironmentFailed` when the disk refuses; earlier checkpoints are then untouched.
    """
    directory = root / f"step-{step:08d}-{uuid.uuid4().hex[:8]}"
    try:
        directory.mkdir(parents=True)
        files: dict[str, dict[str, Any]] = {}
        for name, group in tensors.items():
            content = safetensors.torch.save({k: v.contiguous() for k, v in group.items()})
            files[f"{name}.safetensors"] = _write(directory / f"{name}.safetensors", content)
        files["state.json"] = _write(directory / "state.json", json.dumps(state).encode())
        fsync_directory(directory)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise storage_error(error, directory, "save a checkpoint") from error
    manifest = {"schema": MANIFEST_SCHEMA, "step": step, "files": files}
    try:
        write_atomically(directory / "manifest.json", json.dumps(manifest, indent=1).encode())
    except EnvironmentFailed:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    fsync_directory(root)
    fsync_directory(root.parent)
    committed = Checkpoint(directory, step)
    _retire(root, keep=keep, newest=committed)
    return committed


def latest(root: Path) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest checkpoint that verifies, and what was wrong with newer ones.

    A directory without a manifest was never committed: passed over without a word.
    """
    problems: list[str] = []
    for directory in sorted(_directories(root), key=_step_of, reverse=True):
        if not (directory / "manifest.json").exists():
            continue
        problem = verify(directory)
        if problem is None:
            return Checkpoint(directory, _step_of(directory)), tuple(problems)
        problems.append(f"{directory.name}: {problem}")
    return None, tuple(problems)


def verify(directory: Path) -> str | None:
    """`None` when every file has the size and hash of the manifest, else what does not."""
    try:
        manifest = json.loads((directory / "manifest.json").read_bytes())
        if manifest["schema"] != MANIFEST_SCHEMA:
            return f"written by another version ({manifest['schema']})"
        for name, expected in manifest["files"].items():
            if Path(name).name != name:
                return f"its manifest names a file outside it: {name!r}"
            content = (directory / name).read_bytes()
            if len(content) != expected["bytes"]:
                return f"{name} has {len(content)} bytes, not {expected['bytes']}"
            if hashlib.sha256(content).hexdigest() != expected["sha256"]:
                return f"{name} was altered: its checksum differs"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"damaged manifest or missing file ({error})"
    return None


def load(
    checkpoint: Checkpoint, names: tuple[str, ...]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The tensors of the named files, and the state. Call `latest` or `verify` before."""
    tensors = {
        name: safetensors.torch.load((checkpoint.path / f"{name}.safetensors").read_bytes())
        for name in names
    }
    state = json.loads((checkpoint.path / "state.json").read_bytes())
    if not isinstance(state, dict):
        raise UsageError(
            "damaged checkpoint: state.json is not an object", where=str(checkpoint.path)
        )
    return tensors, state


def set_aside(root: Path, *, newer_than: int) -> None:
    """Rename checkpoints of later steps, which did not verify: they must not push out good ones."""
    for directory in _directories(root):
        if _step_of(directory) > newer_than:
            directory.rename(directory.with_name(f"damaged-{directory.name}"))


def remove_uncommitted(root: Path) -> None:
    """Delete directories that a killed process left without a manifest."""
    for directory in _directories(root):
        if not (directory / "manifest.json").exists():
            shutil.rmtree(directory, ignore_errors=True)


def _write(path: Path, content: bytes) -> dict[str, Any]:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _retire(root: Path, *, keep: int, newest: Checkpoint) -> None:
    older = [d for d in _directories(root) if d != newest.path and (d / "manifest.json").exists()]
    older.sort(key=_step_of)
    for directory in older[: len(older) - (keep - 1)]:
        # The manifest goes first: a half-deleted directory must not look committed.
        (directory / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


def _directories(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [
        d
        for d in root.iterdir()
        if _DIRECTORY.fullmatch(d.name) and d.is_dir() and not d.is_symlink()
    ]


def _step_of(directory: Path) -> int:
    found = _DIRECTORY.fullmatch(directory.name)
    assert found is not None
    return int(found[1])
