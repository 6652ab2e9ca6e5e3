"""`torch.save` and safetensors' `save_file`, by whoever calls them, written beside the steps: the same bytes, whole or not there.

    import hotloop.checkpoint
    hotloop.checkpoint.save_in_background()

torch pickles as before, within the call, and hands its records to a writer. Here they are copied, and a thread hands the copies to
torch's own writer. That one writes a file of the same name in a hidden folder beside it, which then takes the place of the file
before. Who looks for it within this process waits until it is there: `file_doors`.

Saved as before: file objects, the format before zip, what is no plain file of this user's, what memory does not hold twice, and
all files of several processes that train together, since the others may read them after a barrier.
"""

# os.path: `file_doors` stands around what pathlib calls, and torch is given text
# ruff: noqa: PTH101, PTH116, PTH118, PTH119, PTH120, PTH208
from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hotloop.checkpoint.background import end_with, give_way
from hotloop.checkpoint.ranks import num_ranks
from hotloop.checkpoint.recorded_saves import NoRoom, record_all
from hotloop.hardware.limits import memory_left_bytes

SMALLEST_BYTES = 1 << 20
"""A smaller file is written within the call: handing it over takes as long."""
FOLDER = ".hotloop-saving-"
BURSTS = 8
"""Files for which a copy's memory is kept: a checkpoint may be several."""


_storage: Any = torch.UntypedStorage


class Copies:
    """Memory that copies are made in, again and again: new pages take most of a copy's time."""

    def __init__(self) -> None:
        self._spare: deque[dict[int, list[torch.UntypedStorage]]] = deque([{}], maxlen=BURSTS)
        self._room_bytes = 0

    def look(self) -> None:
        """Before each file: what may be taken now, and what was not used for so long goes."""
        self._spare.append({})
        left = memory_left_bytes()
        self._room_bytes = sys.maxsize if left is None else left // 2

    def take(self, num_bytes: int) -> torch.UntypedStorage:
        """Raises `NoRoom`."""
        for each in self._spare:
            if each.get(num_bytes):
                return each[num_bytes].pop()
        self._room_bytes -= num_bytes
        if self._room_bytes < 0:
            raise NoRoom
        try:
            made: torch.UntypedStorage = _storage(num_bytes)
            return made
        except RuntimeError as error:
            raise NoRoom from error

    def give_back(self, used: list[torch.UntypedStorage]) -> None:
        for each in used:
            self._spare[-1].setdefault(each.nbytes(), []).append(each)
        used.clear()

    def free(self) -> None:
        for each in self._spare:
            each.clear()
        self.look()


class FileSave:
    """One file that was saved, and is not in its place yet."""

    def __init__(self, path: str, target: str) -> None:
        """Raises `OSError` where nothing can be written beside `target`."""
        self.path, self.target, self.process = path, target, os.getpid()
        mine = f"{FOLDER}{socket.gethostname()}-{self.process}-"
        self.folder = tempfile.mkdtemp(prefix=mine, dir=os.path.dirname(target))
        self.file = os.path.join(self.folder, os.path.basename(path))
        self.write: Callable[[], object] = lambda: None
        self.copies: list[torch.UntypedStorage] = []
        self.num_bytes = 0

    def finish(self, *, flush: Callable[[], bool] = lambda: False) -> None:
        """Write the file and put it in its place. Raises what goes wrong; then the file before is as it was."""
        try:
            self.write()
            if flush():
                # Else a machine that loses its power may keep the new name without the content, in place of an old file
                # that was whole. Not where somebody waits: torch.save does not wait for the disk either.
                with open(self.file, "rb") as file:
                    os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.chmod(self.file, stat.S_IMODE(os.stat(self.target).st_mode))
            os.replace(self.file, self.target)
        finally:
            self.remove()

    def remove(self) -> None:
        """What lies beside; the writer is closed by then."""
        self.write = lambda: None
        shutil.rmtree(self.folder, ignore_errors=True)


class FileSaves:
    """Those of this process, the oldest first, and the thread that writes them."""

    def __init__(self) -> None:
        self.pending: deque[FileSave] = deque()
        self.inherited: list[FileSave] = []
        """Those of the parent, in a process that was forked while it wrote."""
        self.num_saved = 0
        """Files that went to the background."""
        self.observe: Callable[[str | None], None] = lambda why_not: None
        """Called within each save, with the reason where it is an ordinary one."""
        self._is_on = True
        self._changed = threading.Condition(threading.RLock())
        self._num_waiting = 0
        self._writing = False
        self._error: Exception | None = None
        self._copies = Copies()
        self._ours = threading.local()
        self._looked_in: set[str] = set()
        self._is_over = False
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._at_exit)

    @property
    def is_ours(self) -> bool:
        """Whether this thread is at work in here: what it opens or looks for is no concern of the script's."""
        return bool(getattr(self._ours, "depth", 0))

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        self._ours.depth = getattr(self._ours, "depth", 0) + 1
        try:
            yield
        finally:
            self._ours.depth -= 1

    def begin(self, given: Any) -> FileSave | None:
        """A place for a save to `given`; `None`: it is to be saved as ever. Raises the error of an earlier one."""
        if self.is_ours or not self._is_on:
            return None
        self.check()
        path = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
        if not isinstance(path, str) or "\0" in path:
            self.observe("it is not saved to a path")
            return None
        why_not = self._why_not()
        with self.unwatched():
            target = os.path.realpath(path)
            if why_not is None and not _is_plain(path, target):
                why_not = f"{path} is no plain file of this user's"
            if why_not is None:
                self._make_room()
                try:
                    self._remove_leftovers(os.path.dirname(target))
                    save = FileSave(path, target)
                except OSError as error:
                    why_not = f"nothing can be written beside {path}: {error.strerror}"
        if why_not is None and save.file.isascii() == path.isascii():
            return save
        if why_not is None:  # torch would name the archive otherwise
            self.finish_now(save, discard=True)
            why_not = f"{path} leads to a name in other letters"
        self.ordinary(target, why_not)
        return None

    def toggle(self, on: bool) -> None:
        """Whether the next saves go to the background; waits for those that did."""
        self._is_on = on
        self.wait(lambda save: True)

    def ordinary(self, target: str, why_not: str) -> None:
        """To be saved as ever: after earlier saves to the same file, or these would win."""
        self.wait(lambda each: each.target == target)
        self.observe(why_not)

    def copy(self, save: FileSave, pointer: int, num_bytes: int) -> torch.UntypedStorage:
        """Of memory. Raises `NoRoom`."""
        try:
            with self._changed:
                made = self._copies.take(num_bytes)
        except NoRoom:
            self.wait(lambda each: True)
            with self._changed:
                self._copies.free()
                made = self._copies.take(num_bytes)
        # Not torch's own copy: it asks for threads, which a forked child of a process that has used them waits for in vain.
        ctypes.memmove(made.data_ptr(), pointer, num_bytes)
        save.copies.append(made)
        save.num_bytes += num_bytes
        return made

    def submit(self, save: FileSave) -> None:
        """Have it written."""
        self.observe(None)
        with self._changed:
            same = any(each.target == save.target for each in self.pending)
            if save.num_bytes >= SMALLEST_BYTES or same:
                self.pending.append(save)
                self.num_saved += 1
                if not self._writing:
                    self._writing = True
                    try:
                        # No daemon: the interpreter waits for it, however the training ends.
                        threading.Thread(target=self._write_pending, name="hotloop-saves").start()
                    except RuntimeError:  # it is ending already
                        self._write_pending(beside=False)
                return
        self.finish_now(save)

    def finish_now(self, save: FileSave, *, discard: bool = False) -> None:
        """Write it within the call, or not at all."""
        try:
            with self.unwatched():
                save.remove() if discard else save.finish()
        finally:
            with self._changed:
                self._copies.give_back(save.copies)

    def wait(self, concerned: Callable[[FileSave], bool]) -> None:
        """Until all that are concerned are in their places. Raises the error of one; at once in `unwatched` code."""
        if self.is_ours:
            return
        with self.unwatched():
            for each in [each for each in self.inherited if concerned(each)]:
                while os.path.exists(each.folder) and os.path.exists(f"/proc/{each.process}"):
                    time.sleep(0.01)
        found = [each for each in tuple(self.pending) if concerned(each)]
        if found:
            self._wait_until(lambda: not any(each in self.pending for each in found))
            self.check()

    def check(self) -> None:
        """Raises the error of a save that failed."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def end(self) -> Exception | None:
        """Wait for all of this process's; the error that nobody was told of."""
        self._wait_until(lambda: not self.pending)
        return self._error

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            self._num_waiting += 1
            try:
                self._changed.wait_for(ready)
            finally:
                self._num_waiting -= 1

    def _why_not(self) -> str | None:
        if self._is_over:
            return "the process ends"
        if num_ranks() > 1:
            return "other processes that train with this one may read the file"
        return None

    def _make_room(self) -> None:
        """Two large files may be under way: a training that saves faster than they are written waits."""

        def is_there() -> bool:
            sizes = [each.num_bytes for each in self.pending]
            return not sizes or sum(sizes) < 2 * max(sizes)

        self._wait_until(is_there)
        with self._changed:
            self._copies.look()

    def _write_pending(self, *, beside: bool = True) -> None:
        if beside:
            give_way()
        with self.unwatched():
            while True:
                with self._changed:
                    if not self.pending:
                        self._writing = False
                        return
                    save = self.pending[0]
                try:
                    save.finish(flush=lambda: beside and not self._num_waiting)
                except Exception as error:  # noqa: BLE001 - raised by who saves or looks next
                    self._error = RuntimeError(f"{save.path} was not saved: {error}")
                with self._changed:
                    self.pending.popleft()
                    self._copies.give_back(save.copies)
                    self._changed.notify_all()

    def _remove_leftovers(self, directory: str) -> None:
        """Of processes of this machine that were killed."""
        if directory in self._looked_in:
            return
        self._looked_in.add(directory)
        mine = f"{FOLDER}{socket.gethostname()}-"
        for name in os.listdir(directory):
            if name.startswith(mine):
                owner = name.removeprefix(mine).split("-")[0]
                if owner == str(os.getpid()) or not os.path.exists(f"/proc/{owner}"):
                    shutil.rmtree(os.path.join(directory, name), ignore_errors=True)

    def _forked(self) -> None:
        """In a child of fork: its parent writes. What that writes with shares its files, and must never be closed here."""
        for save in self.pending:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(save.write))
        self._changed = threading.Condition(threading.RLock())
        self._num_waiting, self._writing, self._error = 0, False, None
        self.inherited += self.pending
        self.pending.clear()

    def _at_exit(self) -> None:
        self._is_over = True
        error = self.end()
        if error is not None:
            end_with(error)


def _is_plain(path: str, target: str) -> bool:
    """Whether a new file in the place of the one before is what writing into that would be."""
    if not os.path.basename(path) or "\\" in path:  # which torch takes for a slash
        return False
    try:
        found = os.stat(target)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    alone = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == os.geteuid()
    return alone and os.access(target, os.W_OK)


SAVES: FileSaves | None = None
"""Once files are saved in the background."""


def save_in_background() -> None:
    """Have `torch.save` and safetensors write files beside the steps from now on, in this process."""
    global SAVES
    if SAVES is not None:
        return
    from hotloop.checkpoint.file_doors import watch

    SAVES = FileSaves()
    watch(SAVES)
    record_all(SAVES)
