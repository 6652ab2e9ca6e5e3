"""The working directory as it was before the command ran: every trial starts from it.

A command that goes on from its checkpoint, or refuses to overwrite its results, does in the directory that it
has left something else than it did before. And people edit files while their scripts are tried.

```
<kept>/before.json     what was there
       files/          copies of what may be changed: shared blocks where the file system can, else small files
       unseen.json     checkpoints that were too large for that and were written over: no trial sees them
```
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from hotloop.core.errors import UsageError
from hotloop.core.files import storing, write_atomically
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.trial.isolation import holds_trials, is_python_environment

SNAPSHOT_FILE, UNSEEN_FILE = "before.json", "unseen.json"
MAX_KEPT_BYTES = 512 << 20
MAX_KEPT_FILES = 20_000
MAX_FILE_BYTES = 64 << 20
"""A larger file is kept only where that takes no space, or where it is a checkpoint: a script often writes over its last."""
MAX_ENTRIES = 10_000
"""A directory of more holds data: it is not looked into, unless it is the one in which the command runs."""
HISTORIES = frozenset({".git", ".hg", ".svn", "__pycache__"})
SOURCES = (".py", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".sh", ".txt")
CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".pth.tar")
_FICLONE = 0x40049409


class Stamp(NamedTuple):
    """What a file shows of having been changed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Differences:
    """What to do in the directory as it is now to see it as it was."""

    made: tuple[str, ...]
    """Relative paths that were not there."""
    restored: tuple[str, ...]
    """Relative paths of files that were changed or removed, and are kept."""
    directories: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    """Removed since: relative path, and where it led."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was there, and what of it is kept."""

    root: Path
    kept: Path
    files: Mapping[str, Stamp]
    directories: frozenset[str]
    links: Mapping[str, str]
    copied: frozenset[str]
    """Files that are kept."""

    @property
    def digest(self) -> str:
        """The same tree gives the same one."""
        text = json.dumps([[name, *stamp[:2]] for name, stamp in sorted(self.files.items())])
        return sha256(text.encode()).hexdigest()[:16]

    def hide_lost(self) -> list[str]:
        """Checkpoints that were changed and are not kept: no trial sees them from the first one on, so that all begin alike."""
        path = self.kept / UNSEEN_FILE
        if not path.exists():
            now = _look(self.root, self.kept)
            lost = (each for each in self._changed(now) if each not in self.copied)
            names = sorted(each for each in lost if each.endswith(CHECKPOINTS))
            write_atomically(path, json.dumps({"unseen": names}).encode())
        return self._unseen()

    def _unseen(self) -> list[str]:
        path = self.kept / UNSEEN_FILE
        try:
            return list(map(str, parse_object(read_bytes(path))["unseen"])) if path.exists() else []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, error) from error

    def _changed(self, now: _Seen) -> list[str]:
        return [name for name, stamp in self.files.items() if now.files.get(name) != stamp]

    def differences(self) -> Differences:
        """Raises `UsageError` where a file was changed that is not kept: nothing can be tried from it."""
        now, unseen = _look(self.root, self.kept), set(self._unseen())
        before = {*self.files, *self.directories, *self.links}
        known = {**now.files, **dict.fromkeys(now.directories), **now.links}
        made = [name for name in known if name not in before]
        made += [name for name, to in now.links.items() if self.links.get(name, to) != to]
        made += unseen & now.files.keys()
        # Of what is below a new directory, the directory is enough.
        tops = tuple(sorted(name for name in made if not _is_below(name, set(made))))
        changed = [name for name in self._changed(now) if name not in unseen]
        lost = [name for name in changed if name not in self.copied]
        if lost:
            size = self.files[lost[0]].size
            raise UsageError(
                f"{lost[0]} ({size / 1e6:.0f} MB) has changed since the command was started, and was too large "
                "to keep a copy of: trials would not start from what the command started from",
                where=str(self.root / lost[0]),
                do="let the command write to another place than what it reads, or give `hotloop doctor` "
                "--in-place, where trials go on from what is there; or --no-try for the diagnosis alone",
            )
        return Differences(
            tops,
            tuple(changed),
            tuple(sorted(self.directories - set(now.directories))),
            tuple((name, to) for name, to in self.links.items() if now.links.get(name) != to),
        )

    def content(self, name: str) -> Path:
        """Path of a kept file."""
        return self.kept / "files" / name


class _Seen(NamedTuple):
    files: dict[str, Stamp]
    directories: list[str]
    links: dict[str, str]


def take_snapshot(root: Path, kept: Path) -> Snapshot:
    """Look at `root`, and keep in the new directory `kept` what may be changed.

    kept: in the doctor's own directory, which is not looked into. Raises `UsageError`, `EnvironmentFailed`.
    """
    root, kept = root.resolve(), kept.resolve()
    seen = _look(root, kept)
    with storing(kept, "keep the working directory as it is"):
        kept.mkdir()
        copied = frozenset(_copied(root, seen.files, kept / "files"))
        content = {
            "root": str(root),
            "files": seen.files,
            "directories": seen.directories,
            "links": seen.links,
            "copied": sorted(copied),
        }
        write_atomically(kept / SNAPSHOT_FILE, json.dumps(content).encode())
    return Snapshot(root, kept, seen.files, frozenset(seen.directories), seen.links, copied)


def read_snapshot(kept: Path) -> Snapshot | None:
    """The one that was taken there; `None` where there is none."""
    path = kept / SNAPSHOT_FILE
    try:
        stored = parse_object(read_bytes(path))
        return Snapshot(
            Path(stored["root"]),
            kept.resolve(),
            {str(name): Stamp(*map(int, stamp)) for name, stamp in stored["files"].items()},
            frozenset(map(str, stored["directories"])),
            {str(name): str(to) for name, to in stored["links"].items()},
            frozenset(map(str, stored["copied"])),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(f"damaged: {error}", where=str(path), do="name another directory with --out")


def _look(root: Path, kept: Path) -> _Seen:
    """All that a command may have changed: no histories, environments, sessions or huge directories."""
    seen = _Seen({}, [], {})
    waiting = [(root, "")]
    own = str(kept.parent)
    while waiting:
        directory, prefix = waiting.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError as error:
            if not prefix:
                raise UsageError(f"cannot read: {error.strerror}", where=str(root)) from error
            continue  # what cannot be looked into by us cannot be changed by the command
        if prefix and len(entries) > MAX_ENTRIES:
            continue
        for entry in entries:
            name = prefix + entry.name
            try:
                if entry.is_symlink():
                    seen.links[name] = str(Path(entry.path).readlink())
                elif entry.is_dir():
                    if entry.name in HISTORIES or entry.path == own:
                        continue
                    path = Path(entry.path)
                    if is_python_environment(path) or holds_trials(path):
                        continue
                    seen.directories.append(name)
                    waiting.append((path, name + "/"))
                elif entry.is_file():
                    status = entry.stat()
                    seen.files[name] = Stamp(
                        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
                    )
            except FileNotFoundError:  # gone since its directory was listed
                continue
    # Made by us where they are new.
    above = {
        each.relative_to(root).as_posix()
        for each in kept.parent.parents
        if each.is_relative_to(root)
    }
    seen.directories[:] = [name for name in seen.directories if name not in above]
    return seen


def _copied(root: Path, files: Mapping[str, Stamp], target: Path) -> Iterable[str]:
    """Keeps sources first, then what is newest: results and checkpoints rather than data."""
    order = sorted(files, key=lambda name: (not name.endswith(SOURCES), -files[name].mtime_ns))
    left_bytes, left_files, shares = MAX_KEPT_BYTES, MAX_KEPT_FILES, True
    for name in order[:MAX_KEPT_FILES]:
        size = files[name].size
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            if shares and size and _shares_blocks(root / name, place):
                yield name
                continue
            shares = shares and not size
            most = MAX_KEPT_BYTES if name.endswith(CHECKPOINTS) else MAX_FILE_BYTES
            if size > min(left_bytes, most) or not left_files:
                continue
            shutil.copy2(root / name, place)
        except (
            FileNotFoundError,
            PermissionError,
        ):  # gone, or not ours to read: then not to change
            place.unlink(missing_ok=True)
            continue
        left_bytes, left_files = left_bytes - size, left_files - 1
        yield name


def _shares_blocks(source: Path, target: Path) -> bool:
    """A copy that takes no space until one of them changes; `False` where the file system has none."""
    with source.open("rb") as read, target.open("wb") as write:
        try:
            fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
        except OSError:
            return False
    shutil.copystat(source, target)
    return True


def _is_below(name: str, others: set[str]) -> bool:
    parts = name.split("/")
    return any("/".join(parts[:number]) in others for number in range(1, len(parts)))
