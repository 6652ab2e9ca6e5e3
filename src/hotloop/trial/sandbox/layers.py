"""Build the file tree of a trial: everything at its place, every write in a layer of its own.

overlayfs cannot lie over a directory that holds other mounts, in a user namespace: such a directory is made
anew in memory and each of its entries gets its own layer. What no layer can lie over is read-only.
"""

from __future__ import annotations

import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from hotloop.hardware.limits import shared_memory_left_bytes
from hotloop.trial.sandbox.syscalls import (
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    make_read_only,
    mount,
)

APART = ("/proc", "/sys", "/dev")
"""No files: each is set up in its own way."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "dri", "kfd", "infiniband", "dxg")  # fmt: skip
DEVICE_PREFIXES = ("nvidia", "accel")
DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}  # fmt: skip
PROC_READ_ONLY = ("sys", "irq", "bus", "fs", "sysrq-trigger")
SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/snap", "/usr")
"""Nothing below is a user's."""
MAX_DEPTH, MAX_LOOKED = 3, 500
"""How far directories of others are looked through for those that a user may write."""
MAX_LOOKED_WORKDIR = 5000
MAX_ADOPTED, MAX_ADOPTED_BYTES = 2000, 256 << 20
"""Files of others in the working directory that can be changed in a layer."""
MAX_COPIED_BYTES = 1 << 20
"""A file beside a mount cannot have a layer. Small ones are copied, larger ones read-only."""


class Tree:
    """The new root while it is built. storage: where what is written goes; `None`: into memory."""

    def __init__(self, root: Path, storage: Path | None) -> None:
        self.root = root
        self._mounts = mount_points()  # ours, made from here on, are in no layer's way
        mount("none", "/", flags=MS_REC | MS_PRIVATE)
        mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
        self.storage = storage if storage is not None else root / ".layers"
        self.storage.mkdir()
        self._numbers: Iterator[int] = count()

    def build(self, workdir: str) -> None:
        """All of what is seen from outside. Raises `OSError` where `workdir` cannot have a layer."""
        self._workdir = Path(workdir)
        self._split(Path("/"))
        self._devices()
        mount("/proc", self._made("/proc"), flags=MS_BIND | MS_REC)
        for name in PROC_READ_ONLY:
            place = self.root / "proc" / name
            if place.exists():
                mount(place, place, flags=MS_BIND | MS_REC)
                make_read_only(place)
        mount("/sys", self._made("/sys"), flags=MS_BIND | MS_REC)
        make_read_only(self.root / "sys")

    def inside(self, path: str) -> Path:
        """The place of an absolute path in the new tree, as it is seen from the old one."""
        return self.root / path.lstrip("/")

    def hide(self, path: str) -> None:
        """An empty directory in its place."""
        mount("tmpfs", self.inside(path), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0700")

    def share(self, path: str) -> None:
        """The directory itself: what is written there is seen outside."""
        place = self.inside(path)
        place.mkdir(parents=True, exist_ok=True)
        mount(path, place, flags=MS_BIND)

    def _place(self, path: Path) -> None:
        if any(point != path and point.is_relative_to(path) for point in self._mounts):
            self._split(path)
            return
        target = self._made(path)
        try:
            self._layer(path, target)
        except OSError:
            if self._workdir.is_relative_to(path):
                raise
            mount(path, target, flags=MS_BIND)
            make_read_only(target)

    def _layer(self, path: Path, target: Path) -> None:
        own = self.storage / str(next(self._numbers))
        (own / "up").mkdir(parents=True)
        (own / "work").mkdir()
        shutil.copystat(path, own / "up")
        if os.geteuid() != 0:
            self._open_ways(path, own / "up")
        below, up, work = (_escaped(each) for each in (path, own / "up", own / "work"))
        data = f"userxattr,lowerdir={below},upperdir={up},workdir={work}"
        mount("overlay", target, "overlay", data=data)

    def _open_ways(self, path: Path, up: Path) -> None:
        """Make directories of others in the layer where a writable one lies below them.

        overlayfs would give them there to their owner or group, whom an unprivileged namespace does not know.
        In the working directory files of another group, as shared disks have them, are copied for the same reason.
        """
        ways: set[Path] = set()
        if self._workdir.is_relative_to(path):
            ways |= {self._workdir, *self._workdir.parents}
        if str(path) not in SYSTEM:
            ways |= _ways_to_writable(path, MAX_LOOKED)
        files: list[Path] = []
        if self._workdir.is_relative_to(path):
            ways |= _ways_to_writable(self._workdir, MAX_LOOKED_WORKDIR, files)
        for way in sorted(ways):
            if way != path and way.is_relative_to(path) and way.is_dir():
                target = up / way.relative_to(path)
                target.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # gone since it was listed
                    shutil.copystat(way, target)
        left = MAX_ADOPTED_BYTES
        for file in files[:MAX_ADOPTED]:
            with suppress(FileNotFoundError):
                left -= file.stat().st_size
                if left >= 0:
                    shutil.copy2(file, up / file.relative_to(path))

    def _split(self, path: Path) -> None:
        """Its entries one by one."""
        made = self._made(path)
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except PermissionError:  # then the script cannot look into it either
            return
        for entry in entries:
            target = made / entry.name
            if entry.path in APART or Path(entry.path) == self.root:
                continue
            try:
                if entry.is_symlink():
                    target.symlink_to(Path(entry.path).readlink())
                elif entry.is_dir():
                    self._place(Path(entry.path))
                elif entry.is_file():
                    _give_file(Path(entry.path), target)
            except PermissionError:
                continue
            except FileNotFoundError:  # others clear up beside a mount, as in /tmp
                if os.path.lexists(entry.path):
                    raise
                _discard(target)
        if path != Path("/"):
            shutil.copystat(path, made)

    def _devices(self) -> None:
        made = self._made("/dev")
        for source in sorted(Path("/dev").iterdir()):
            name, target = source.name, made / source.name
            if name not in DEVICES and not name.startswith(DEVICE_PREFIXES):
                continue
            if source.is_symlink():
                target.symlink_to(source.readlink())
                continue
            if source.is_dir():
                target.mkdir()
            else:
                target.touch()
            mount(source, target, flags=MS_BIND | MS_REC)
        for name, leads_to in DEVICE_LINKS.items():
            (made / name).symlink_to(leads_to)
        (made / "shm").mkdir()
        # No more room than outside: loader workers that fill it there have to fill it here.
        left = shared_memory_left_bytes()
        room = "" if left is None else f",size={max(left, mmap.PAGESIZE)}"
        mount("tmpfs", made / "shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777{room}")

    def _made(self, path: Path | str) -> Path:
        target = self.inside(str(path))
        target.mkdir(parents=True, exist_ok=True)
        return target


def _ways_to_writable(root: Path, most: int, files: list[Path] | None = None) -> set[Path]:
    """Directories of others from `root` on that can be written, or hold one that can, as far as it is looked.

    files: takes those of others that can be written, unless they are large.
    """
    ways: set[Path] = set()
    waiting, looked = [(root, 0)], 0
    while waiting and looked < most:
        directory, depth = waiting.pop(0)
        looked += 1
        try:
            entries = list(os.scandir(directory))
        except OSError:
            continue
        for entry in entries[:most]:
            if entry.is_symlink():
                continue
            path = Path(entry.path)
            try:
                is_own = _is_own(entry.stat())
            except FileNotFoundError:
                continue
            is_writable = is_own or os.access(path, os.W_OK)
            if not entry.is_dir():
                readable = entry.is_file() and is_writable and os.access(path, os.R_OK)
                if files is not None and readable and not is_own:
                    files.append(path)
                    ways |= {directory, *directory.parents}
                continue
            if is_writable:
                ways |= {directory, *directory.parents} | (set() if is_own else {path})
            if files is not None or (not is_own and depth < MAX_DEPTH):
                waiting.append((path, depth + 1))
    return ways


def _discard(target: Path) -> None:
    """Remove what stands for an entry that is gone meanwhile."""
    with suppress(OSError):
        if target.is_dir():
            target.rmdir()
        else:
            target.unlink()


def _is_own(status: os.stat_result) -> bool:
    return (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())


def mount_points() -> list[Path]:
    """The places where other file systems begin in the tree as it is seen now."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [Path(_unescaped(line.split(" ")[4])) for line in file]


def _give_file(source: Path, target: Path) -> None:
    status = source.stat()
    if status.st_size <= MAX_COPIED_BYTES and stat.S_ISREG(status.st_mode):
        try:
            shutil.copy2(source, target)
            return
        except PermissionError:  # not readable: it is shown as it is
            pass
    target.touch()
    mount(source, target, flags=MS_BIND)
    make_read_only(target)


def _escaped(path: Path) -> str:
    """For mount options, in which these characters separate."""
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _unescaped(text: str) -> str:
    """The kernel writes white space and backslashes of paths in octal."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, character)
    return text
