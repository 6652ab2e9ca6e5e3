"""Committing a checkpoint beside the training: one at a time, on a thread of its own.

What is committed is a snapshot, which no later step changes. The commit protocol is `store`'s: a process
that is killed while the thread writes leaves a directory without a manifest, and continues from the
checkpoint before. So at most two intervals are lost. An error surfaces where the training next asks.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

NICE = 10


class Saver:
    """Runs one save at a time beside the caller, who sees its error at the next call of any method but `wait`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, save: Callable[[], object]) -> None:
        """Start `save`, after the one before has ended. Raises its error."""
        self.finish()

        def run() -> None:
            try:
                _give_way()
                save()
            except BaseException as error:  # noqa: BLE001 - `check` raises it
                self._error = error

        # No daemon: the interpreter waits for it, however the training ends.
        self._thread = threading.Thread(target=run, name="hotloop-save")
        self._thread.start()

    def check(self) -> None:
        """Raises the error of a save that has failed; never waits."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Until nothing is being saved; of errors `check` tells."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def finish(self) -> None:
        """Wait, and raise the error of what was waited for."""
        self.wait()
        self.check()


def _give_way() -> None:
    """A CPU that the steps want goes to them rather than to this thread: on Linux each has a priority of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
