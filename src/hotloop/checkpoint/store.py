"""The commit protocol: a checkpoint is a fresh directory, and a manifest that verifies is its commit.

A step directory is never written twice. Files are written, flushed to the disk and hashed; the
directory is flushed; the manifest, with every file's size and SHA-256, is renamed into place last.
A process killed at any instant leaves either a checkpoint that verifies or a directory without a
manifest, which the next run ignores and removes. Older checkpoints are deleted only after a newer one
has been committed. A step directory may be a link to another disk: it is read as if it lay here, and
retired by removing the link. Tensors are safetensors and the rest is JSON: nothing that is read can
run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from hotloop import __version__
from hotloop.checkpoint.entries import (
    Entry,
    Manifest,
    StoredFile,
    read_manifest,
    retired,
    step_of,
)
from hotloop.checkpoint.state import FILES
from hotloop.core.config import CheckpointConfig
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import fsync_directory, storage_error, storing, write_atomically
from hotloop.core.tensor_file import read_tensors
from hotloop.core.untrusted import open_regular, parse_object, read_bytes

MANIFEST = "manifest.json"
_ASIDE = re.compile(r"(damaged|left)-step-(\d{8})-[0-9a-f]{8}")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_WHY = {"damaged": "it did not verify", "left": "the run went on from an earlier step"}
_STATE = "state.json"
_MEMBERS = frozenset({_STATE, *(f"{name}.safetensors" for name in FILES)})
"""Files without which training cannot continue."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint."""

    path: Path
    step: int
    """Steps completed when it was taken: training continues with the step of this number."""
    files: frozenset[str]
    """Names of its files, of which the manifest has the checksums."""


def save(
    root: Path,
    step: int,
    *,
    tensors: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    keep: int | CheckpointConfig,
    losses: Mapping[int, float] | None = None,
    good_until: int | None = None,
) -> Checkpoint:
    """Write and commit a checkpoint under `root`, then delete those that `keep` does not: all but the newest so many, or by the rules of a config.

    `tensors` maps a file's name to its tensors; `state` is everything else, JSON-ready; `losses` are the
    held-out ones by step. With `good_until` every older one of that step or before is kept as well: what came after may be
    useless. Raises `EnvironmentFailed` when the disk refuses; earlier checkpoints are then untouched.
    """
    directory = new_directory(root, step)
    try:
        for name, group in tensors.items():
            _write_tensors(directory / f"{name}.safetensors", group)
        (directory / _STATE).write_text(json.dumps(state), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise storage_error(error, directory, "save a checkpoint") from error
    saved = commit(directory, [*(f"{name}.safetensors" for name in tensors), _STATE])
    rules = CheckpointConfig(keep=keep) if isinstance(keep, int) else keep
    retire(root, rules, newest=directory, losses=losses or {}, good_until=good_until)
    return saved


def new_directory(root: Path, step: int) -> Path:
    """A step directory that never was: a checkpoint is written into it, and `commit` makes it one."""
    directory = root / f"step-{step:08d}-{uuid.uuid4().hex[:8]}"
    with storing(directory, "save a checkpoint"):
        directory.mkdir(parents=True)
    return directory


def commit(directory: Path, names: list[str], *, saved_at: float | None = None) -> Checkpoint:
    """Flush and hash the named files, and make the directory a checkpoint, which it is or is not at any instant.

    `saved_at`: when it was saved, where that was earlier. Raises `EnvironmentFailed`; the directory is gone then.
    """
    step = _step_of(directory)
    try:
        files = {name: _flushed(directory / name) for name in names}
        fsync_directory(directory)
        versions = {"hotloop": __version__, "torch": str(torch.__version__)}
        manifest = Manifest(step, files, versions=versions)
        write_atomically(directory / MANIFEST, manifest.to_json())
        if saved_at is not None:
            os.utime(directory / MANIFEST, (saved_at, saved_at))
    except (OSError, EnvironmentFailed) as error:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, EnvironmentFailed):
            raise
        raise storage_error(error, directory, "save a checkpoint") from error
    with storing(directory, "save a checkpoint"):
        fsync_directory(directory.parent)  # it is whole, but perhaps not after a loss of power
        fsync_directory(directory.parent.parent)
    return Checkpoint(directory, step, frozenset(files))


def latest(root: Path, *, before: int | None = None) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest checkpoint that verifies, and what was wrong with newer ones.

    With `before`, the newest of an earlier step than that. A directory without a manifest was never
    committed and is passed over.
    """
    problems: list[str] = []
    for directory in sorted(_committed(root), key=_step_of, reverse=True):
        if before is not None and _step_of(directory) >= before:
            continue
        found = _verified(directory)
        if isinstance(found, Checkpoint):
            return found, tuple(problems)
        problems.append(f"{directory.name}: {found}")
    return None, tuple(problems)


def of_step(root: Path, step: int) -> Checkpoint:
    """The checkpoint of exactly that step. Raises `UsageError` with those that are there."""
    problem = None
    for directory in _committed(root):
        if _step_of(directory) == step:
            found = _verified(directory)
            if isinstance(found, Checkpoint):
                return found
            problem = f"the checkpoint of step {step} cannot be used: {found}"
    there = ", ".join(map(str, steps(root)))
    do = f"those kept here are of step {there}" if there else "none is kept here"
    raise UsageError(problem or f"there is no checkpoint of step {step}", where=str(root), do=do)


def steps(root: Path) -> tuple[int, ...]:
    """The steps of the checkpoints that were committed, whole or not, in ascending order."""
    return tuple(sorted({_step_of(directory) for directory in _committed(root)}))


def newest_seen(root: Path) -> int:
    """The latest step of which a checkpoint was ever committed here, as far as names tell; 0 for none."""
    aside = [_ASIDE.fullmatch(d.name) for d in (root.iterdir() if root.is_dir() else ())]
    return max([0, *steps(root), *(int(found[2]) for found in aside if found)])


def verify(directory: Path) -> str | None:
    """`None` when every file has the size and hash of the manifest, else what does not."""
    found = _verified(directory)
    return None if isinstance(found, Checkpoint) else found


def manifest_of(content: bytes, step: int) -> Manifest:
    """Raises `ValueError` for what is not that of a checkpoint of `step` with which training can continue."""
    return read_manifest(content, step, members=_MEMBERS)


def entry(directory: Path, *, hashes: bool = False) -> Entry:
    """What a step directory is. Files are compared by size alone unless `hashes`."""
    name, step, manifest, saved_at, problem = directory.name, _step_of(directory), None, None, None
    if _is_uncommitted(directory):
        why = "no manifest: its save, or its deletion, was cut short"
        return Entry(name, step, "half-written", why)
    try:
        saved_at = (directory / MANIFEST).stat().st_mtime
        manifest = manifest_of(read_bytes(directory / MANIFEST), step)
        for file_name, said in manifest.files.items():
            with open_regular(directory / file_name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != said.bytes:
                    raise ValueError(f"{file_name} has {size} bytes, not {said.bytes}")
                if hashes and hashlib.file_digest(file, "sha256").hexdigest() != said.sha256:
                    raise ValueError(f"{file_name} was altered: its checksum differs")
    except OSError as error:
        problem = f"damaged manifest or missing file ({error})"
        problem = problem if directory.is_dir() else "its link leads nowhere"
    except ValueError as error:
        problem = str(error)
    return Entry(name, step, "damaged" if problem else "whole", problem, saved_at, manifest)


def entries(root: Path, *, hashes: bool = False) -> list[Entry]:
    """All that lies there, oldest first."""
    found = [entry(each, hashes=hashes) for each in _directories(root)]
    for directory in root.iterdir() if root.is_dir() else ():
        if aside := _ASIDE.fullmatch(directory.name):
            found.append(Entry(directory.name, int(aside[2]), "set aside", _WHY[aside[1]]))
    return sorted(found, key=lambda each: (each.step, each.name))


def _verified(directory: Path) -> Checkpoint | str:
    found = entry(directory, hashes=True)
    return found.problem or Checkpoint(directory, found.step, frozenset(found.files))


def load(
    checkpoint: Checkpoint, names: tuple[str, ...]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The tensors of the named files, and the state. Raises `UsageError` for what hotloop never wrote."""
    tensors = {}
    for name in names:
        file = f"{name}.safetensors"
        if file not in checkpoint.files:
            raise foreign(checkpoint, f"it has no {file}")
        try:
            tensors[name] = read_tensors(checkpoint.path / file)
        except (OSError, UsageError) as error:
            raise foreign(checkpoint, f"{file}: {getattr(error, 'what', error)}") from error
    try:
        return tensors, parse_object(read_bytes(checkpoint.path / _STATE), finite=False)
    except (OSError, ValueError) as error:
        raise foreign(checkpoint, f"{_STATE}: {error}") from error


def foreign(checkpoint: Checkpoint, problem: str) -> UsageError:
    """The error for one that holds what hotloop never writes."""
    return UsageError(
        f"not a checkpoint that hotloop wrote: {problem}",
        where=str(checkpoint.path),
        do="remove it, to continue from the one before",
    )


def set_aside(root: Path, *, newer_than: int) -> None:
    """Rename checkpoints of later steps: they must neither be continued from nor push out others.

    Those that do not verify become `damaged-...`, the others `left-...`; of one step the newest is kept.
    """
    for directory in _committed(root):
        if _step_of(directory) > newer_than:
            word = "damaged" if verify(directory) else "left"
            if word == "left":
                for older in root.glob(f"left-step-{_step_of(directory):08d}-*"):
                    _remove(older)
            directory.rename(directory.with_name(f"{word}-{directory.name}"))


def set_aside_lost(root: Path, step: int) -> str | None:
    """Rename the directory of `step` that lost its manifest to `damaged-...`; returns its name."""
    for directory in _directories(root):
        if _step_of(directory) == step and _is_uncommitted(directory):
            directory.rename(directory.with_name(f"damaged-{directory.name}"))
            return directory.name
    return None


def remove_uncommitted(root: Path) -> tuple[str, ...]:
    """Delete directories that a killed process left without a manifest; returns their names."""
    removed = [d for d in _directories(root) if _is_uncommitted(d)]
    for directory in removed:
        _remove(directory)
    return tuple(sorted(d.name for d in removed))


def _write_tensors(path: Path, group: dict[str, Tensor]) -> None:
    """Raises `OSError` where the disk refuses. Other threads run meanwhile: bytes are never Python's."""
    try:
        safetensors.torch.save_file({k: v.contiguous() for k, v in group.items()}, path)
    except safetensors.SafetensorError as error:
        number = _OS_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    path.chmod(0o644)  # the library leaves it to its owner alone


def _flushed(path: Path) -> StoredFile:
    """Its size and hash, once it is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredFile(os.fstat(file.fileno()).st_size, digest)


def retire(
    root: Path, rules: CheckpointConfig, *, newest: Path, losses: Mapping[int, float], good_until: int | None
) -> None:  # fmt: skip
    """Delete what `rules` do not keep, now that `newest` is committed."""
    found, now = [entry(directory) for directory in _committed(root)], time.time()
    step = _step_of(newest)
    again = [e for e in found if e.step == step and e.name != newest.name]  # it was saved once more
    found = [e for e in found if e not in again]
    for each in again + retired(found, rules, newest=newest.name, now=now, losses=losses, good_until=good_until):  # fmt: skip
        remove(root / each.name)


def remove(directory: Path) -> None:
    """Delete a checkpoint, or the link to one."""
    if not directory.is_symlink():
        # The manifest goes first: a half-deleted directory must not look committed.
        (directory / MANIFEST).unlink(missing_ok=True)
    _remove(directory)


def _remove(directory: Path) -> None:
    """Delete a directory, or the link to one: what lies on another disk is its owner's to delete."""
    if directory.is_symlink():
        directory.unlink(missing_ok=True)
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _is_uncommitted(directory: Path) -> bool:
    """Not of a link that leads nowhere: its disk may only be away.

    Raises `EnvironmentFailed` where the disk does not say: what is uncommitted is deleted, and `exists` can be False for any error.
    """
    if not directory.is_dir():
        return False
    with storing(directory, "look for the manifest of a checkpoint"):
        try:
            (directory / MANIFEST).stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
    return False


def _committed(root: Path) -> list[Path]:
    return [directory for directory in _directories(root) if not _is_uncommitted(directory)]


def _directories(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return [
        d for d in root.iterdir() if step_of(d.name) is not None and (d.is_dir() or d.is_symlink())
    ]


def _step_of(directory: Path) -> int:
    step = step_of(directory.name)
    assert step is not None
    return step
