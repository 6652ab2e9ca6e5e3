"""Whether a signal came from the terminal, or to us alone.

Python does not say who sent a signal. A terminal sends Ctrl-C to every process of the group in its
foreground: a process of ours in the same group that does nothing gets it, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

_WAITS = (
    "import signal, sys\n"
    "for name in ('SIGINT', 'SIGHUP'):\n"
    "    signal.signal(getattr(signal, name), signal.SIG_DFL)\n"
    "sys.stdin.read()\n"
)
"""Ends with the first such signal, and when we do: its standard input is a pipe of ours."""


class Witness:
    """Beside us while a command runs in a terminal; without one nothing is started."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if _terminal_group() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WAITS],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def saw(self, number: int) -> bool:
        """Whether the terminal sent it to the whole group: the command has it already."""
        if number == signal.SIGTERM or self._process is None:
            return False
        return _terminal_group() == os.getpgrp() and self._process.poll() is not None

    def release(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def _terminal_group() -> int | None:
    """The process group in the foreground of our terminal; `None` where there is none."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno())
    except (OSError, AttributeError):
        return None
