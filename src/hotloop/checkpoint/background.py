"""Committing a checkpoint beside the training: one at a time, on a thread of its own.

What is committed is a snapshot, which no later step changes. The commit protocol is `store`'s: a process
that is killed while the thread writes leaves a directory without a manifest, and continues from the
checkpoint before. An error surfaces where the training next asks.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

NICE = 5
"""Beside steps that take all CPUs it has a quarter of what it would have as one of them."""


class Saver:
    """Runs one save at a time beside the caller, who sees its error at the next call of any method but `wait`."""

    def __init__(self, *, unattended: bool = False) -> None:
        """`unattended`: the end of the process shows an error that nobody asked for, and takes code 4."""
        self._unattended = unattended
        self._pid = os.getpid()
        self._ended: threading.Event | None = None
        """Of the save that was begun. Not the thread's own `join`: up to Python 3.12 an interrupted one takes a thread that
        runs for one that has ended."""
        self.error: BaseException | None = None
        """Of the save that failed, until it is raised."""
        self.committed = 0
        """The step that the newest save is of, or the one that training was continued from."""
        self.under_way: tuple[int, float] | None = None
        """Of the save that runs: its step, and when it began by `time.monotonic`."""
        self.took_s: float | None = None
        """Of the newest save, from its snapshot to its commit."""

    def timed(self, save: Callable[[], object], step: int, began: float) -> Callable[[], None]:
        """`save` of a step, which keeps count of what is saved and how long that takes."""

        def run() -> None:
            self.under_way = step, began
            try:
                save()
                self.committed, self.took_s = step, time.monotonic() - began
            finally:
                self.under_way = None

        return run

    def expected_s(self, root: Path, num_bytes: int) -> float:
        """How long a save of so much will take: as long as the one before, else as a small file says."""
        if self.took_s is None:
            began, content = time.monotonic(), os.urandom(8 << 20)
            with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=root) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            hashlib.sha256(content).digest()
            return (time.monotonic() - began) * num_bytes / len(content)
        return self.took_s

    def begin(self, save: Callable[[], object]) -> None:
        """Start `save`, after the one before has ended. Raises its error."""
        self.finish()
        if self._unattended:
            atexit.register(self._at_exit)
            self._unattended = False
        self._pid = os.getpid()
        ended = threading.Event()

        def run() -> None:
            try:
                give_way()
                save()
            except BaseException as error:  # noqa: BLE001 - `check` raises it
                self.error = error
            finally:
                ended.set()

        # No daemon: the interpreter waits for it, however the training ends.
        threading.Thread(target=run, name="hotloop-save").start()
        self._ended = ended

    @property
    def is_writing(self) -> bool:
        """Whether a save that was begun has not ended."""
        return self._ended is not None and not self._ended.is_set()

    def check(self) -> None:
        """Raises the error of a save that has failed; never waits."""
        self._forget_parent()
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def wait(self) -> None:
        """Until nothing is being saved, whatever interrupts that; of errors `check` tells."""
        self._forget_parent()
        interrupted = None
        while self._ended is not None:
            try:
                self._ended.wait()
                self._ended = None
            except KeyboardInterrupt as error:  # what is begun must not go on behind the caller
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def finish(self) -> None:
        """Wait, and raise the error of what was waited for."""
        self.wait()
        self.check()

    def _forget_parent(self) -> None:
        """In a process that was forked, the thread does not run: its save is the parent's."""
        if self._pid != os.getpid():
            self._ended, self.error, self._pid = None, None, os.getpid()

    def _at_exit(self) -> None:
        try:
            self.finish()
        except BaseException as error:  # noqa: BLE001 - nobody is left to raise it to
            end_with(error)


def report_unsaved(error: BaseException) -> None:
    print(f"error: the last checkpoint was not saved: {error}", file=sys.stderr, flush=True)  # noqa: T201


def end_with(error: BaseException) -> None:
    """In an exit handler: show it, and have the process end with code 4."""
    report_unsaved(error)
    vars(sys)["_hotloop_ending"] = (
        _Ending()
    )  # a module of ours may outlive its own clearing: what the system calls refers to it


class _Ending:
    """Ends the process when the interpreter clears `sys`, last of all: after all `atexit` handlers, whose errors set no code."""

    def __del__(self, end: Callable[[int], object] = os._exit) -> None:
        end(4)  # ExitCode.ENVIRONMENT, which may be gone by then


def give_way() -> None:
    """A CPU that the steps want goes to them rather than to this thread: on Linux each has a priority of its own."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(
                os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread))
            )
