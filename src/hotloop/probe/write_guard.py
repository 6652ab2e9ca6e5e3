"""Keeps somebody's script from writing outside its own copy while it is only tried, and says what it tried to.

Runs inside the foreign interpreter, standard library alone, through Python's audit events. What C code
opens by itself raises none: torch.save is therefore looked at as well, other libraries are not.
"""

# os.path: audit events give text, and what is asked of Path would raise events of its own
# ruff: noqa: PTH100, PTH111, PTH118
from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from hotloop.core.child import OUTSIDE_FILE, WITHIN
from hotloop.probe.imports import after_import

CACHES = (
    "XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE", "TORCH_HOME", "TRITON_CACHE_DIR", "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "HOTLOOP_CACHE",
    "PYTHONPYCACHEPREFIX",
)  # fmt: skip
"""Variables that name caches: writing there is what they are for."""
SYSTEM = ("/dev", "/proc", "/sys")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def caches() -> list[str]:
    """Directories that are there to be written by any program of this user."""
    named = [os.environ[name] for name in CACHES if os.environ.get(name)]
    return [*named, os.path.join(os.path.expanduser("~"), ".cache")]


class WriteGuard:
    """Decides which paths may be written."""

    def __init__(self, roots: list[str]) -> None:
        self.report = os.path.join(roots[0], OUTSIDE_FILE)
        self.allowed = tuple(os.path.realpath(each) for each in (*roots, *caches(), *SYSTEM))
        self.home = os.path.realpath(os.path.expanduser("~"))

    def may_write(self, path: str) -> bool:
        """Within the copy, temporary files, caches, and what Python compiles for itself."""
        named, real = os.path.abspath(path), os.path.realpath(path)
        if any(_within(real, root) for root in self.allowed):
            return True
        if "__pycache__" in real or f"{os.sep}site-packages{os.sep}" in real:
            return True
        # Caches in the home directory are often links to a larger disk.
        return self._is_hidden(named) or self._is_hidden(real)

    def _is_hidden(self, path: str) -> bool:
        return _within(path, self.home) and path[len(self.home) :].lstrip(os.sep).startswith(".")

    def check(self, path: Any) -> None:
        """Raises `PermissionError` for a path outside, after it was noted."""
        if isinstance(path, int) or path is None:
            return
        name = os.fsdecode(path)
        if self.may_write(name):
            return
        full = os.path.abspath(name)
        with open(self.report, "a", encoding="utf-8") as file:
            file.write(json.dumps({"path": full}) + "\n")
        raise PermissionError(
            f"{full} is outside of the copy of the working directory that this trial runs in"
        )


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def audit_hook(guard: WriteGuard) -> Callable[[str, tuple[Any, ...]], None]:
    """For `sys.addaudithook`."""

    def opened(path: Any, mode: Any, flags: Any) -> None:
        if isinstance(flags, int) and flags & WRITING:
            guard.check(path)

    def made(path: Any, *rest: Any) -> None:
        if rest[-1] == -1 and not os.path.exists(path):  # existing ones stay as they are
            guard.check(path)

    def removed(path: Any, dir_fd: Any = -1) -> None:
        if dir_fd in (-1, None) and os.path.lexists(path):
            guard.check(path)

    def moved(source: Any, target: Any, *rest: Any) -> None:
        for path in (source, target):
            guard.check(path)

    events: dict[str, Callable[..., None]] = {
        "open": opened,
        "os.mkdir": made,
        "os.remove": removed,
        "os.rmdir": removed,
        "os.truncate": lambda path, length: guard.check(path),
        "os.rename": moved,
        "os.link": lambda source, target, *rest: guard.check(target),
        "os.symlink": lambda source, target, *rest: guard.check(target),
        "shutil.rmtree": removed,
    }

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        watched = events.get(event)
        if watched is not None:
            watched(*arguments)

    return hook


def install_from_environment() -> None:
    """Put up the guard, if the trial asked for it."""
    roots = os.environ.get(WITHIN)
    if not roots:
        return
    guard = WriteGuard(roots.split(os.pathsep))
    sys.addaudithook(audit_hook(guard))
    after_import({"torch.serialization": lambda module: _watch_saving(module, guard)})


def _watch_saving(serialization: Any, guard: WriteGuard) -> None:
    """torch.save opens its file in C++."""
    writer = serialization._open_zipfile_writer_file
    original = writer.__init__

    def made(self: Any, name: Any) -> None:
        guard.check(name)
        original(self, name)

    writer.__init__ = made
