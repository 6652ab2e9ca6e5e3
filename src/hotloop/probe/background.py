"""Work in a thread that ends before a fork and starts again when told to. Standard library alone.

From Python 3.12 on, `os.fork()` warns in a process of several threads, and counts them after it has forked:
a thread that is there for us must be gone by then, and may not be started again by the fork's own hooks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread, current_thread, get_ident

WARNS_OF_THREADS = sys.version_info >= (3, 12)
"""Before, nobody asks, and nothing has to end."""
PATIENCE_S = 0.05
"""For a thread that is in the middle of something: then the fork happens, and the warning may come."""
GONE_S = 0.005
"""For the kernel to take an ended thread off its list."""

COLLECTED_S: dict[int, float] = {}
"""CPU seconds of Python's collections of garbage in each thread that works here: what is due is collected by whoever allocates next."""

Turn = Callable[[], float | None]
"""Does a piece of work; returns the seconds until the next, `None` to end."""


class Background:
    """Calls `turn` again and again, the first time after `first_s`.

    A turn that raises is the last: `failed` is told of it, and nothing is printed.
    """

    def __init__(
        self,
        name: str,
        turn: Turn,
        failed: Callable[[str], None] = lambda error: None,
        *,
        first_s: float = 0.0,
    ) -> None:
        self._name = name
        self._turn = turn
        self._failed = failed
        self._wait_s: float | None = first_s
        self._stopped = False
        self._wake = Lock()
        self._thread: Thread | None = None
        self._ended_s = 0.0
        self.cpu_s = 0.0
        """CPU seconds of all its threads so far, without collections."""
        self.is_paused = False

    def start(self) -> None:
        """In a new daemon thread."""
        self.is_paused = False
        self._wake = Lock()
        self._wake.acquire()
        self._ended_s = self.cpu_s
        self._thread = Thread(target=self._run, args=(self._wake,), name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """For good, within a moment."""
        self._stopped = True
        self.is_paused = False
        self._release()

    def pause(self) -> None:
        """End the thread, and see it gone; `resume` starts another."""
        thread = self._thread
        if thread is None or thread is current_thread() or not thread.is_alive():
            return
        self._release()
        thread.join(PATIENCE_S)
        self.is_paused = True
        if not thread.is_alive():
            _see_gone(thread.native_id)

    def resume(self) -> None:
        """After `pause`; else nothing."""
        if not self.is_paused:
            return
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()  # it was in the middle of something, and ends after it
        self.start()

    def forked(self) -> None:
        """In a child: there is no thread, and will be none."""
        self._stopped, self._thread = True, None
        self.is_paused = False

    def _release(self) -> None:
        if self._wake.locked():
            try:
                self._wake.release()
            except RuntimeError:  # it woke at this moment
                pass

    def _run(self, wake: Lock) -> None:
        COLLECTED_S[get_ident()] = 0.0
        # A lock's time-out costs as little as sleeping, an event's ten times as much.
        while self._wait_s is not None and not wake.acquire(True, self._wait_s):
            if self._stopped:
                return
            try:
                self._wait_s = self._turn()
            except Exception as error:  # noqa: BLE001 - never a traceback on the script's stderr
                name = self._name.removeprefix("hotloop-")
                self._failed(f"the {name} failed: {type(error).__name__}: {error}")
                return
            self.cpu_s = self._ended_s + time.thread_time() - COLLECTED_S[get_ident()]


def _see_gone(native_id: int | None) -> None:
    """`join` returns when Python is done with a thread, the kernel some microseconds later."""
    path = Path(f"/proc/self/task/{native_id}")
    end = time.monotonic() + GONE_S
    while time.monotonic() < end and path.exists():
        time.sleep(1e-4)


def pause_before_forks(work: Callable[[], tuple[Background, ...]]) -> None:
    """End these threads before every fork of this process, where this Python would warn of them."""
    if not WARNS_OF_THREADS:
        return

    def before() -> None:
        for each in work():
            each.pause()

    os.register_at_fork(before=before)
