"""What a rerun command may touch: a copy of its directory, and nothing that is published.

What is protected: the command's working directory (it runs in a copy), trackers and hubs (offline).
What is not: files it names by absolute paths outside that directory, links that lead out of it, and
the home directory, where its caches of models and data are meant to be found.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from hotloop.core.child import OF_A_TRIAL
from hotloop.core.command_run import COMMAND_RUN_FILE
from hotloop.core.errors import UsageError
from hotloop.core.files import storing, write_atomically

MAX_COPY_BYTES = 512 << 20
MAX_COPY_FILES = 20_000
SESSION_MARK = ".hotloop-session"
"""A directory holding this file belongs to hotloop and is left out of copies."""
HISTORIES = frozenset({".git", ".hg", ".svn"})
"""Never input of a training step, often large."""
OUTPUTS = frozenset({"node_modules", "wandb", "mlruns"})
"""Made by trackers and other tools, where they are made: at the top. A package may have such a name."""
MAX_TMPDIR_LENGTH = 55
"""Sockets of worker processes live under TMPDIR and may be 107 characters long in all."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a copy of a working directory would hold."""

    root: Path
    files: tuple[tuple[str, int], ...]
    """Relative path and size in bytes."""
    directories: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    """Relative path, and where the link in the copy points."""
    digest: str
    """Digest of names, sizes and modification times: the same tree gives the same digest."""
    source: Path | None = None
    """The directory that holds the files; `None`: in `root` itself."""
    restricted: bool = False
    """The kernel refuses writes outside of the copy, and connections unless `network`."""
    network: bool = False

    @property
    def total_bytes(self) -> int:
        return sum(size for _, size in self.files)


def list_workdir(root: Path, *, without: Path) -> Listing:
    """Decide what is copied. Python environments are linked instead.

    without: the session's own directory, which may lie inside. Raises `UsageError` when the copy would be too large.
    """
    root = root.resolve()
    files: list[tuple[str, int]] = []
    directories: list[str] = []
    links: list[tuple[str, str]] = []
    digest = sha256()
    for path in _walk(root, root, without.resolve()):
        relative = path.relative_to(root).as_posix()
        if is_python_environment(path):
            links.append((relative, str(path)))
        elif path.is_symlink():
            links.append((relative, _link_target(path, root)))
        elif path.is_dir():
            directories.append(relative)
        else:
            try:
                status = path.stat()
            except FileNotFoundError:  # gone since its directory was listed
                continue
            files.append((relative, status.st_size))
            # Compiled modules are rewritten by the very runs that are compared.
            if "__pycache__" not in relative:
                digest.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    listing = Listing(root, tuple(files), tuple(directories), tuple(links), digest.hexdigest()[:16])
    _refuse_too_large(listing)
    return listing


def copy_workdir(listing: Listing, target: Path) -> None:
    """Make the copy. Links lead to the originals; raises `EnvironmentFailed` on a full disk."""
    with storing(target, "copy the working directory"):
        target.mkdir(parents=True)
        for directory in listing.directories:
            (target / directory).mkdir(parents=True, exist_ok=True)
        for relative, _ in listing.files:
            try:
                shutil.copy2((listing.source or listing.root) / relative, target / relative)
            except FileNotFoundError:  # gone since it was listed, as temporary files are
                continue
        for relative, destination in listing.links:
            (target / relative).symlink_to(destination)


def lay_over(files: Mapping[str, bytes], work: Path) -> None:
    """Give the trial that runs in `work` other contents of `files`, by path relative to it.

    Each is replaced, never written into: what a trial sees may share its bytes with the user's own file.
    Raises `EnvironmentFailed` on a full disk.
    """
    for relative, content in files.items():
        target = (work / relative).resolve()
        assert target.is_relative_to(work.resolve()), f"{relative} leads out of the trial"
        with storing(target, "edit a file of a trial"):
            mode = target.stat().st_mode if target.exists() else None
            write_atomically(target, content)
            if mode is not None:
                target.chmod(mode)


def in_copy(text: str, original: Path, copy: Path) -> str:
    """`text` with absolute paths into the working directory turned to the copy."""
    pattern = rf"(?<![\w./-]){re.escape(str(original))}(?=$|[/:,;\"'])"
    return re.sub(pattern, lambda _: str(copy), text)


def offline(directory: Path) -> dict[str, str]:
    """Variables that keep trackers and hubs from publishing; what they write goes to `directory`.

    Hugging Face libraries are wholly offline: besides pushes, a download in one trial and not in
    the next would be measured. What a command needs must have been downloaded before.
    """
    place = str(directory)
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": place,
        "MLFLOW_TRACKING_URI": (directory / "mlruns").as_uri(),
        "COMET_START_ONLINE": "0",
        "COMET_MODE": "OFFLINE",  # transformers' own integration
        "COMET_OFFLINE_DIRECTORY": place,
        "NEPTUNE_MODE": "offline",
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "offline",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
    }


@contextmanager
def temporary_directory(trial: Path) -> Iterator[Path]:
    """A TMPDIR for one trial: inside it, unless worker sockets would not fit such a long path."""
    inside = trial / "tmp"
    with storing(inside, "make a temporary directory"):
        if len(str(inside)) <= MAX_TMPDIR_LENGTH:
            inside.mkdir(exist_ok=True)
            path = inside
        else:
            path = Path(tempfile.mkdtemp(prefix="hotloop-"))
            inside.symlink_to(path)  # so that it is found again when this process was killed
    try:
        yield path
    finally:
        remove_temporary(trial)


def remove_temporary(trial: Path) -> None:
    """Remove what `temporary_directory` made for `trial`, wherever it lies."""
    inside = trial / "tmp"
    if inside.is_symlink():
        shutil.rmtree(inside.readlink(), ignore_errors=True)
        inside.unlink()
    else:
        shutil.rmtree(inside, ignore_errors=True)


def without_own_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment a trial starts from: this process's, less what hotloop itself set for a trial."""
    return {name: value for name, value in environment.items() if name not in OF_A_TRIAL}


def _walk(directory: Path, root: Path, without: Path) -> Iterator[Path]:
    """Everything that has a place in the copy, a directory before what is in it."""
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", where=str(directory)) from error
    for path in entries:
        if path.is_symlink():
            yield path
        elif path.is_dir():
            if path == without or holds_trials(path) or _is_left_out(path, root):
                continue
            yield path
            if not is_python_environment(path):
                yield from _walk(path, root, without)
        elif path.is_file():  # no sockets, no pipes
            yield path


def _is_left_out(path: Path, root: Path) -> bool:
    if path.name in HISTORIES:
        return True
    is_output = path.name in OUTPUTS and path.parent == root
    return is_output and not (path / "__init__.py").exists()


def holds_trials(path: Path) -> bool:
    """Whether it is a directory of ours, which nothing that is tried needs: a copy of it would have the copies in it, too."""
    return (path / SESSION_MARK).exists() or (path / COMMAND_RUN_FILE).exists()


def is_python_environment(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir():
        return False
    return (path / "pyvenv.cfg").exists() or (path / "conda-meta").is_dir()


def _link_target(link: Path, root: Path) -> str:
    """Target of a link in the copy: inside stays inside, outside becomes absolute."""
    absolute = os.path.normpath(link.parent / link.readlink())
    if absolute == str(root) or absolute.startswith(f"{root}{os.sep}"):
        return os.path.relpath(absolute, link.parent)
    return absolute


def _refuse_too_large(listing: Listing) -> None:
    if listing.total_bytes <= MAX_COPY_BYTES and len(listing.files) <= MAX_COPY_FILES:
        return
    sizes: dict[str, int] = {}
    counts: dict[str, int] = {}
    for relative, size in listing.files:
        top = relative.split("/", 1)[0]
        sizes[top] = sizes.get(top, 0) + size
        counts[top] = counts.get(top, 0) + 1
    by_size = listing.total_bytes > MAX_COPY_BYTES
    largest = sorted(sizes, key=lambda top: -(sizes if by_size else counts)[top])[:3]
    raise UsageError(
        f"each trial runs in a copy of the working directory, and this one is too large to copy: "
        f"{listing.total_bytes / 1e6:.0f} MB in {len(listing.files)} files "
        f"(at most {MAX_COPY_BYTES / 1e6:.0f} MB in {MAX_COPY_FILES}); "
        f"most of it is in {', '.join(largest)}",
        where=str(listing.root),
        do="move what the command only reads out of it; or give `hotloop doctor` --in-place, where the command "
        "may overwrite its own files, or --no-try for the diagnosis alone",
    )
