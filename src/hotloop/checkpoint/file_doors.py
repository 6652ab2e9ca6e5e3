"""Where a process looks for its files: whoever does waits until the saves that are concerned are in their places.

So it sees what an ordinary save would have shown. Functions are wrapped, at a tenth of a microsecond; an audit hook would be called for every
`id()`, of which an optimizer's step makes thousands. What is not seen: C code that opens files by itself, other than safetensors,
and other programs that run already. They find the file before until the new one is there, whole.
"""

# os.path: pathlib would come back in here
# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import _posixsubprocess
import builtins
import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hotloop.checkpoint.background import report_unsaved

if TYPE_CHECKING:
    from hotloop.checkpoint.background_files import FileSave, FileSaves

_FILES = ("stat", "lstat", "access", "truncate", "chmod", "chown", "utime", "getxattr", "setxattr", "link", "symlink")  # fmt: skip
_LISTINGS = ("open", "listdir", "scandir")
"""Of a file, or of a directory for what is in it."""
_CHANGES = ("rename", "replace", "remove", "unlink", "rmdir")
_OTHERS = ("system", "execv", "execve", "posix_spawn", "posix_spawnp", "kill")
"""What may look anywhere, without us."""
_LOW = ("posix", "_io", "_frozen_importlib", "_frozen_importlib_external")
"""Modules by which Python itself looks for what is imported."""
Before = Callable[..., object]


class _Door:
    """A function that waits first: an object, which as an attribute of a class binds nobody."""

    def __init__(self, saves: FileSaves, owner: Any, original: Any, before: Before) -> None:
        functools.update_wrapper(self, original)
        self.__module__ = owner.__name__
        self._pending, self._inherited = saves.pending, saves.inherited
        self._original, self._before = original, before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._pending or self._inherited:
            self._before(*args, **kwargs)
        return self._original(*args, **kwargs)

    def __reduce__(self) -> str:
        return str(self._original.__name__)


def watch(saves: FileSaves) -> None:
    """From now on, for good."""

    def everything(*args: Any, **kwargs: Any) -> None:
        saves.wait(lambda save: True)

    looks = functools.partial(_looks_at, saves)
    doors: list[tuple[Any, str, Before]] = [
        *((os, name, looks) for name in _FILES),
        *((os, name, functools.partial(_lists, saves, everything)) for name in _LISTINGS),
        (builtins, "open", functools.partial(_lists, saves, None)),
        *((os, name, functools.partial(_changes, saves)) for name in _CHANGES),
        (shutil, "rmtree", functools.partial(_changes, saves)),
        *((os, name, everything) for name in _OTHERS),
        (_posixsubprocess, "fork_exec", everything),
    ]
    with contextlib.suppress(ImportError):
        import safetensors

        doors.append((safetensors, "safe_open", looks))
    instead = {}
    for owner, name, before in doors:
        original = getattr(owner, name)
        instead[id(original)] = original, _Door(saves, owner, original, before)
    for kept in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):  # fmt: skip
        # Programs ask whether a function is in there.
        kept.update(door for original, door in instead.values() if original in kept)
    for module in [each for name, each in list(sys.modules.items()) if name not in _LOW]:
        for name, each in list(getattr(module, "__dict__", {}).items()):
            if id(each) in instead:  # also where it was imported by its name
                setattr(module, name, instead[id(each)][1])
    _wrap_exit(saves)


def _looks_at(saves: FileSaves, *paths: Any, **named: Any) -> None:
    """Wait for saves to one of these; what is no path is passed over."""
    if not saves.is_ours:
        found = _real(saves, (*paths, *named.values()))
        saves.wait(lambda save: save.target in found)


def _lists(
    saves: FileSaves, everything: Before | None, path: Any = None, *rest: Any, **named: Any
) -> None:
    """Wait for saves to a path, and for those in it; a handle may be that of any directory."""
    if saves.is_ours:
        return
    path = next(iter(named.values()), path) if path is None else path
    if isinstance(path, int):
        if everything is not None:
            everything()
        return
    found = _real(saves, (os.curdir if path is None else path,))
    saves.wait(lambda save: save.target in found or os.path.dirname(save.target) in found)


def _real(saves: FileSaves, paths: Iterable[Any]) -> set[str]:
    with saves.unwatched():
        named = [os.fsdecode(each) for each in paths if isinstance(each, (str, bytes, os.PathLike))]
        return {os.path.realpath(each) for each in named if "\0" not in each}


def _changes(saves: FileSaves, *paths: Any, **named: Any) -> None:
    """Wait for saves below the directory of what is renamed or removed: an older checkpoint must not go before the new one is there."""
    if saves.is_ours or any(isinstance(each, int) for each in named.values()):
        return  # relative to a handle: within a tree whose removal has waited
    with saves.unwatched():
        both = [each for each in (*paths, *named.values()) if isinstance(each, (str, bytes, os.PathLike))]  # fmt: skip
        above = _real(saves, [os.path.dirname(os.path.abspath(os.fsdecode(each))) for each in both])

    def concerned(save: FileSave) -> bool:
        return any(save.target.startswith(os.path.join(each, "")) for each in above)

    saves.wait(concerned)


def _wrap_exit(saves: FileSaves) -> None:
    exit_now = os._exit

    def _exit(status: int) -> None:
        """os._exit"""
        error = None if saves.is_ours else saves.end()
        if error is not None:
            report_unsaved(error)
        exit_now(status or (4 if error is not None else 0))

    os._exit = _exit  # type: ignore[assignment]
