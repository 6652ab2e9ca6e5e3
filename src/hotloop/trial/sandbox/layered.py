"""Trials in the working directory itself, where every write goes to a layer that is thrown away, and restricted ones.

Layers need user namespaces and an overlayfs in them, which Linux has since 5.13 and administrators may refuse.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import hotloop
from hotloop.core.connections import NO_NETWORK, Network, host_and_port
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import storing
from hotloop.trial.process import Finished
from hotloop.trial.sandbox.launcher import FAILED, NOT_RUN
from hotloop.trial.snapshot import Snapshot

Storage = Literal["disk", "memory"]
"""What layers lie in. Memory is for file systems that cannot hold one: network disks, images of containers."""
InSandbox = Callable[[Sequence[str], Path], Finished]
"""Starts a command in the sandbox of that file, and waits for its end."""
_EDITED = "edited"
_FAILURE_FILE = "failure"
_FULL_BYTES = 1 << 20
"""A disk with less free space is full."""
_TEST_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Layered:
    """How trials of one command are kept apart from everything else."""

    snapshot: Snapshot
    hidden: Path
    """The doctor's directory, absolute: a trial sees it empty but for its own parts."""
    storage: Storage = "disk"
    network: Network = NO_NETWORK
    """What it may reach beside itself."""

    @property
    def digest(self) -> str:
        """Digest of the directory that it starts from."""
        return self.snapshot.digest

    @property
    def root(self) -> Path:
        """The working directory."""
        return self.snapshot.root


def run_layered(
    command: Sequence[str],
    layered: Layered,
    *,
    place: Path,
    shared: Sequence[Path],
    process: InSandbox,
    edited: Mapping[str, bytes] | None = None,
) -> Finished:
    """Run `command` in a sandbox of its own, whose layer is in the new directory `place` and gone afterwards.

    shared: directories that take what is recorded. edited: what files of the working directory hold in it.
    Raises `EnvironmentFailed` where the sandbox cannot be set up
    or its disk is full, `UsageError` where the command cannot be started or the directory is no more what it was.
    """

    def described() -> Path:
        return _layered(layered, place=place, shared=shared, edited=edited or {})

    return _run(command, described, place, process)


def _layered(
    layered: Layered, *, place: Path, shared: Sequence[Path], edited: Mapping[str, bytes]
) -> Path:
    """The file that describes the sandbox."""
    changes = layered.snapshot.differences()
    contents = {_resolved(name, layered.root): content for name, content in edited.items()}
    spec = {
        "root": str(place / "root"),
        "storage": str(place / "store") if layered.storage == "disk" else None,
        "hosts": str(place / "hosts"),
        "hidden": [str(layered.hidden)],
        "shared": [str(path.resolve()) for path in shared if path.exists()],
        "network": layered.network.unlimited,
        "machines": [host_and_port(each) for each in layered.network.hosts],
        "workdir": str(layered.root),
        "made": changes.made,
        "directories": changes.directories,
        "restored": [(str(layered.snapshot.content(name)), name) for name in changes.restored]
        + [(str(place / _EDITED / name), name) for name in contents],
        "links": changes.links,
    }
    with storing(place, "prepare a trial"):
        (place / "root").mkdir(parents=True)
        for name, content in contents.items():
            target, original = place / _EDITED / name, layered.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if original.exists():
                target.chmod(original.stat().st_mode)
    return _described(spec, place)


def _resolved(name: str, root: Path) -> str:
    """Path of the file itself, relative to the working directory."""
    target = (root / name).resolve()
    assert target.is_relative_to(root), f"{name} leads out of the working directory"
    return target.relative_to(root).as_posix()


def _described(spec: Mapping[str, Any], place: Path) -> Path:
    """The file for `in_sandbox` that says so; `place`: a directory for what is said about it."""
    # A file, not an argument: those are bounded, and shown to everyone.
    file = place / "spec.json"
    content = {**spec, "failure": str(place / _FAILURE_FILE)}
    with storing(file, "prepare a trial"):
        place.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content), encoding="utf-8")
    return file


def in_sandbox(command: Sequence[str], sandbox: Path) -> list[str]:
    """The command that becomes `command` in the sandbox of that file."""
    packages = str(Path(hotloop.__file__).resolve().parent.parent)
    start = (
        f"import sys; sys.path.append({packages!r}); "
        "from hotloop.trial.sandbox.launcher import main; main()"
    )
    # -I -S: nothing of the user's environment is loaded.
    return [sys.executable, "-I", "-S", "-c", start, str(sandbox), *command]


def run_restricted(
    command: Sequence[str],
    *,
    place: Path,
    writable: Sequence[Path],
    network: bool,
    process: InSandbox,
) -> Finished:
    """Run `command` where the kernel refuses it to write but below `writable`. Raises as `run_layered`."""
    spec = {"writable": [str(path) for path in writable], "network": network}
    return _run(command, lambda: _described(spec, place), place, process)


def _run(
    command: Sequence[str],
    described: Callable[[], Path],
    place: Path,
    process: InSandbox,
) -> Finished:
    try:
        finished = process(command, described())
        if finished.returncode:
            _check_failed(finished.returncode, command, place)
        return finished
    finally:
        remove_tree(place)


def _check_failed(returncode: int, command: Sequence[str], place: Path) -> None:
    """Raises where it was not the command that failed."""
    failure = place / _FAILURE_FILE
    why = failure.read_text(encoding="utf-8", errors="replace") if failure.is_file() else ""
    if why and returncode == NOT_RUN:
        do = "check the command, and that its program may be executed"
        raise UsageError(f"cannot run `{command[0]}`: {why}", do=do)
    if why and returncode == FAILED:
        raise EnvironmentFailed(
            f"the sandbox of a trial could not be set up: {why}",
            where=str(place),
            do="make sure that this disk has space, or name a run directory on another one with --out",
        )
    if shutil.disk_usage(place).free < _FULL_BYTES:
        raise EnvironmentFailed(
            "the disk is full: what a trial writes is kept beside what it records until it ends",
            where=str(place),
            do="free some space, or name a run directory on another disk with --out",
        )


def storage_for(directory: Path, workdir: Path) -> Storage | None:
    """What layers of trials in `directory` can lie in; `None` where the kernel gives none over `workdir`."""
    if sys.platform != "linux":
        return None
    storages: tuple[Storage, ...] = ("disk", "memory")
    return next((each for each in storages if _holds(directory, workdir, each)), None)


def _holds(directory: Path, workdir: Path, storage: Storage) -> bool:
    """Tried for real: a file is written in a sandbox, and must not be there afterwards."""
    with storing(directory, "prepare a trial"):
        place = Path(tempfile.mkdtemp(prefix=".sandbox-", dir=directory))
    try:
        outside, shown = place / "outside", place / "seen" / "shown"
        outside.mkdir()
        shown.parent.mkdir()
        written = (workdir if os.access(workdir, os.W_OK) else outside) / f"{place.name}-written"
        snapshot = Snapshot(outside, place / "kept", {}, frozenset(), {}, frozenset())
        layered = Layered(snapshot, place / "layer", storage)
        source = f"open({str(written)!r}, 'w').close(); open({str(shown)!r}, 'w').close()"
        program = [sys.executable, "-I", "-S", "-c", source]
        sandbox = _layered(layered, place=place / "layer", shared=[shown.parent], edited={})
        done = subprocess.run(
            in_sandbox(program, sandbox),
            cwd=workdir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TEST_TIMEOUT_S,
            check=False,
        )
        if written.exists():  # no layer at all
            written.unlink()
            return False
        return done.returncode == 0 and shown.exists()
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        remove_tree(place)


def remove_tree(place: Path) -> None:
    """Also where overlayfs left a directory that nobody may look into."""
    shutil.rmtree(place, ignore_errors=True)
    if not place.exists():
        return
    for directory, names, _ in os.walk(place):
        for name in names:
            try:
                Path(directory, name).chmod(0o700)
            except OSError:
                continue
    shutil.rmtree(place, ignore_errors=True)
