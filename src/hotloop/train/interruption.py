"""Requests to stop, by signals and by a cloud's notices, and the window until the process is killed.

A request is met at the next step boundary, and at once where no work would be lost: while data is waited for, and in the
first step of a process, which may compile for minutes. A thread ends the process when neither came within the window:
it learns of a signal even while the main thread runs C++ and no handler of Python's can run.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import torch

from hotloop.checkpoint.notices import Notice
from hotloop.core.errors import ExitCode, Interrupted

if TYPE_CHECKING:
    from hotloop.train.run import Run

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_BEFORE_A_KILL = (signal.SIGTERM, signal.SIGUSR1)
"""Nobody kills what does not end after Ctrl-C or with its terminal."""
_WAKE = signal.SIGURG
"""Brings the main thread to a notice; who does not know it ignores it."""
_TWICE_S = 1.0
"""A SIGTERM so soon after another is the same one, of a launcher that passes on what all were sent."""


_UNWINDS_S = 2.0
FIRST_STEP = " in the first step of this process: nothing was to be saved"

_wakeup_fds: set[int] = set()


_forking = threading.local()


@cache
def _look_after_forks() -> None:
    """Once: such hooks stay, and do nothing where no `StopRequest` is entered."""
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_in_child)


def _block() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS) if _wakeup_fds else None


def _unblock() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_child() -> None:
    """What a forked process is sent, be it at its first moment, must not end this one."""
    if _wakeup_fds and (fd := signal.set_wakeup_fd(-1)) not in _wakeup_fds:
        signal.set_wakeup_fd(fd)
    _unblock()


class StopNow(KeyboardInterrupt):
    """Raised in the main thread by a request that nothing has to be finished for."""


class StopRequest:
    """While entered, the first signal or notice sets `asked`; a second SIGINT, SIGTERM or SIGHUP interrupts at once."""

    def __init__(self, run: Run) -> None:
        self.asked = False
        self.reason = ""
        self.fresh = False
        """True in the first step of a process, of which nothing is to be saved: a request raises `StopNow` there."""
        self._waiting = False
        self.deadline = math.inf
        """When the process must be on its way out, by `time.monotonic`."""
        self._run, self._window_s = run, run.config.checkpoint.notice_s
        self.closed = threading.Event()
        self._first: tuple[int, float] | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        self._reads, self._writes = socket.socketpair()
        self._writes.setblocking(False)
        self._guard = threading.Thread(target=self._watch, name="hotloop-stop", daemon=True)
        self._guard.start()
        if threading.current_thread() is threading.main_thread():
            _wakeup_fds.add(self._writes.fileno())
            _look_after_forks()
            self._hook, sys.unraisablehook = sys.unraisablehook, self._unraised
            self._fd = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
            for number in (*_SIGNALS, _WAKE):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            if number == signal.SIGTERM and kind is not None and self._run.group.ranks.launched:
                handler = signal.SIG_IGN  # torchrun's must not come before the last words
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._before:
            sys.unraisablehook = self._hook
            _wakeup_fds.discard(signal.set_wakeup_fd(self._fd))
        self.closed.set()
        self._writes.close()
        self._guard.join()
        self._reads.close()

    def tell(self, notice: Notice) -> None:
        """Stop for a notice; from any thread."""
        self._narrow(notice.what, self._window_s if notice.left_s is None else notice.left_s)
        signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)

    def waited(self, wait: Callable[[], T]) -> T | None:
        """What `wait` returns; `None` when a stop is asked for before or meanwhile."""
        try:
            try:
                self._waiting = True
                return None if self.asked else wait()
            finally:
                self._waiting = False
        except StopNow:
            self._waiting = False
            if self.fresh:
                raise
            return None

    @property
    def continues(self) -> str:
        """What the user may do then."""
        return f"run the same command again to continue from step {self._run.saver.committed}"

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number not in (_WAKE, signal.SIGUSR1):
            first, now = self._first, time.monotonic()
            self._first = first or (number, now)
            again = first and (number != signal.SIGTERM or first[0] != number)
            if again or (first and now - first[1] > _TWICE_S):
                raise KeyboardInterrupt
        self._note(number)
        if self.reason:  # else a stray one
            self.asked = True
            if self.fresh or self._waiting:
                self._waiting = False
                raise StopNow

    def _unraised(self, found: sys.UnraisableHookArgs) -> None:
        """`StopNow` that a callback of the compiler's swallowed is no error to show."""
        if found.exc_type is not StopNow:
            self._hook(found)

    def _note(self, number: int) -> None:
        """Called for a signal by its handler and by the guard, whoever is first."""
        if number in _SIGNALS:
            window_s = self._window_s if number in _BEFORE_A_KILL else math.inf
            self._narrow(signal.Signals(number).name, window_s)

    def _narrow(self, reason: str, window_s: float) -> None:
        self.reason = self.reason or reason
        spare_s = min(1.0, window_s / 5)  # for what a process does to end
        self.deadline = min(self.deadline, time.monotonic() + max(window_s - spare_s, 0.0))

    def _watch(self) -> None:
        watchdog, told_at = self._run.watchdog, 0.0
        while True:
            if (hang := watchdog.hang()) is not None:
                self._end(hang)
            left_s = self.deadline - time.monotonic()
            if self.fresh and self.reason:  # it was raised to no avail, or a compiler of C++ runs
                told_at = told_at or time.monotonic()
                left_s = min(left_s, told_at + _UNWINDS_S - time.monotonic())
            if left_s <= 0:
                over = "the time that was left is over before a step ended or was saved"
                self._end(f"{self.reason}{FIRST_STEP}" if self.fresh else f"{self.reason}: {over}")
            wait_s = min(left_s, watchdog.tick_s)
            self._reads.settimeout(None if wait_s == math.inf else wait_s)
            try:
                numbers = self._reads.recv(64)
            except TimeoutError:
                continue
            if not numbers:
                return
            for number in numbers:
                self._note(number)

    def _end(self, why: str) -> None:
        """End the process without waiting for anything: the newest checkpoint is whole."""
        # Neither sys.stderr, whose lock the main thread may hold, nor a pipe that nobody reads.
        if select.select([], [2], [], 1.0)[1]:
            os.write(2, f"{why}\n  {self.continues}\n".encode())
        os._exit(ExitCode.RESUMABLE)


def last_save(
    run: Run, stop: StopRequest, done: int, save: Callable[[Run, int], None]
) -> Interrupted:
    """`save` after `done` steps if that fits into what is left; the end of this process, in words."""
    saver = run.saver
    own = torch.tensor(stop.deadline - time.monotonic(), dtype=torch.float64)
    # A notice may reach one machine alone: its rank ends then, and no save with it.
    left_s = min(float(each["left"]) for each in run.group.gathered({"left": own}))

    def planned() -> tuple[str, float, int]:
        """What to do, how long a save takes, and the step that training continues from."""
        step, began = saver.under_way or (saver.committed, -math.inf)
        takes_s = saver.expected_s(run.checkpoints, run.state_bytes)
        wait_s = max(began + takes_s - time.monotonic(), 0.0)
        if step != done and wait_s + takes_s < left_s:
            return "save", takes_s, done
        return ("wait", takes_s, step) if wait_s < left_s else ("leave", takes_s, saver.committed)

    action, takes_s, step = run.group.decided(planned)
    if action == "save":
        save(run, done)
    elif action == "wait":
        saver.finish()
        run.group.level()
    found = f"saved at step {done}"
    if step != done:
        left = f"{max(left_s, 0.0):.0f} s are left"
        found = f"saving takes {takes_s:.0f} s, {left}: continuing will start from step {step}"
    what = f"{stop.reason or 'another rank'}: stopped after step {done} of {run.config.train.steps}"
    again = "run the same command again to continue"
    return Interrupted(f"{what}; {found}", where=str(run.directory), do=again)
