"""Where a process looks for its files: whoever does waits until the saves that are concerned are in their places.

So it sees what an ordinary save would have shown. Most ways come by Python's audit events; what has none is wrapped: `os.stat` and
its kind, `os._exit`, processes that `multiprocessing` spawns, and safetensors, which opens files by itself. What is not seen: other
programs that run already. They find the file before until the new one is there, whole.
"""

# os.path: pathlib would come back in here
# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import _posixsubprocess
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hotloop.checkpoint.background import report_unsaved

if TYPE_CHECKING:
    from hotloop.checkpoint.background_files import FileSave, FileSaves

_FILES = ("os.truncate", "os.chmod", "os.chown", "os.utime", "os.getxattr", "os.setxattr", "os.link", "os.symlink")  # fmt: skip
_LISTINGS = ("open", "os.listdir", "os.scandir")
"""Of a file, or of a directory for what is in it."""
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
_OTHERS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.kill")
"""What may look anywhere, without us."""


def watch(saves: FileSaves) -> None:
    """From now on, for good."""
    pending, inherited = saves.pending, saves.inherited
    doors: dict[str, Callable[..., None]] = {
        **{event: functools.partial(_looks_at, saves) for event in _FILES},
        **{event: functools.partial(_lists, saves, event != "open") for event in _LISTINGS},
        **{event: functools.partial(_changes, saves) for event in _CHANGES},
        **{event: lambda *args: saves.wait(_everything) for event in _OTHERS},
    }

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if (pending or inherited) and event in doors:
            doors[event](*args)

    def wrap(owner: Any, name: str, before: Callable[..., object]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def door(*args: Any, **kwargs: Any) -> Any:
            if pending or inherited:
                before(*args, **kwargs)
            return original(*args, **kwargs)

        door.__module__ = owner.__name__
        for kept in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):  # fmt: skip
            if original in kept:
                kept.add(door)  # programs ask whether a function is in there
        setattr(owner, name, door)

    sys.addaudithook(audit)
    for name in ("stat", "lstat", "access"):
        wrap(os, name, lambda path, *args, **kwargs: _looks_at(saves, path))
    wrap(_posixsubprocess, "fork_exec", lambda *args: saves.wait(_everything))
    _wrap_exit(saves)
    with contextlib.suppress(ImportError):
        import safetensors.torch

        _wrap_reader(saves, vars(safetensors.torch)["safe_open"])


def _everything(save: FileSave) -> bool:
    return True


def _looks_at(saves: FileSaves, *paths: Any) -> None:
    """Wait for saves to one of these; what is no path is passed over."""
    if not saves.is_ours:
        found = _real(saves, paths)
        saves.wait(lambda save: save.target in found)


def _lists(saves: FileSaves, lists: bool, path: Any = None, *rest: Any) -> None:
    """Wait for saves to `path`, and for those in it."""
    if saves.is_ours:
        return
    if lists and isinstance(path, int):
        saves.wait(_everything)
        return
    found = _real(saves, (os.curdir if path is None else path,))
    saves.wait(lambda save: save.target in found or os.path.dirname(save.target) in found)


def _real(saves: FileSaves, paths: Iterable[Any]) -> set[str]:
    with saves.unwatched():
        named = [os.fsdecode(each) for each in paths if isinstance(each, (str, bytes, os.PathLike))]
        return {os.path.realpath(each) for each in named if "\0" not in each}


def _changes(saves: FileSaves, *args: Any) -> None:
    """Wait for saves below the directory of what is renamed or removed: an older checkpoint must not go before the new one is there."""
    if saves.is_ours or any(isinstance(each, int) and each >= 0 for each in args):
        return
    with saves.unwatched():
        paths = [os.fsdecode(each) for each in args if isinstance(each, (str, bytes, os.PathLike))]
    above = _real(saves, [os.path.dirname(os.path.abspath(each)) for each in paths])
    saves.wait(lambda save: any(save.target.startswith(os.path.join(each, "")) for each in above))


def _wrap_exit(saves: FileSaves) -> None:
    exit_now = os._exit

    def _exit(status: int) -> None:
        """os._exit"""
        error = None if saves.is_ours else saves.end()
        if error is not None:
            report_unsaved(error)
        exit_now(status or (4 if error is not None else 0))

    os._exit = _exit  # type: ignore[assignment]


def _wrap_reader(saves: FileSaves, safe_open: Any) -> None:
    def opened(filename: Any, *args: Any, **kwargs: Any) -> Any:
        if saves.pending or saves.inherited:
            _looks_at(saves, filename)
        return safe_open(filename, *args, **kwargs)

    for module in list(sys.modules.values()):  # whoever has imported it by its name
        for name, each in list(getattr(module, "__dict__", {}).items()):
            if each is safe_open:
                setattr(module, name, opened)
