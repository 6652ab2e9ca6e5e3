"""Somebody's command in their own terminal: it starts, is interrupted and ends as it would without us.

It shares our terminal, our streams and our process group, so a Ctrl-C reaches it directly. We only
listen, give it time to end in its own way, and then see to it that nothing of it is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from hotloop.trial import watchdog
from hotloop.trial.guard import Guard
from hotloop.trial.process import GRACE_S, Tick, ended_within, start

INTERRUPT_GRACE_S = 30.0
"""Seconds that a command has after Ctrl-C to end by itself: it may be saving a checkpoint."""
ENOUGH_GRACE_S = 20.0
"""The same after the last step that was asked for: other ranks end a little later."""
FORWARD_AFTER_S = 1.0
"""A signal that was sent to us alone is passed on after this."""
LINGER_S = 2.0
"""Loader workers notice the end of their parent by themselves, a moment later."""
LOOK_EVERY_S = 0.5

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Attached:
    """How a command ended."""

    returncode: int
    """Negative: the signal that ended it."""
    wall_s: float
    started_at: float
    """Seconds since the epoch."""
    was_ended: bool
    """It did not end by itself within its time; the code is then that of our signal."""
    left_running: tuple[int, ...]
    """Processes that it started, that were not asked to end, and that went on after it."""


@dataclass(slots=True)
class Heard:
    """Signals that reached us while the command was ours to look after."""

    signals: list[int] = field(default_factory=list)
    first_at: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)
        if self.first_at is None:
            self.first_at = time.monotonic()


@contextmanager
def listening() -> Iterator[Heard]:
    """Nothing is interrupted by a signal inside; what came is in the result.

    Handlers, not SIG_IGN: what is ignored here would be ignored in the command, too. One that was
    ignored when we started (nohup) stays so, for both.
    """
    heard = Heard()
    before = {}
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, heard)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_attached(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    token: tuple[str, str],
    heard: Heard,
    has_enough: Callable[[], bool],
    started: Callable[[int], None],
    tick: Tick,
    say: Callable[[str], None],
) -> Attached:
    """Run `command` to its end, here, with our own streams.

    token: a variable in `env` and its value, by which processes of the command are known.
    has_enough: whether the command was told to end, so that what does not is ended.
    started: told its process id; tick: called twice a second; say: told what a user who waits should know.
    Raises `UsageError` when it cannot be started. Where it raises anything else, the command was ended.
    """
    started_at, began = time.time(), time.perf_counter()
    # What was opened for the command (`3<file`) stays open for it; what Python opens never does.
    process = start(command, env=env, close_fds=False)
    variable, value = token
    try:
        guard, detector = Guard(value, variable), SignalDetector()
        guard.tell(f"tree {process.pid}")
        try:
            started(process.pid)
            ended = _attend(process, began, heard, detector, has_enough, tick, say)
            wall_s = time.perf_counter() - began
            left: tuple[int, ...] = ()
            if not ended or heard.signals or has_enough():
                _end_all(process, token, heard)
            else:
                left = _left_running(token)
            returncode = process.wait()
            return Attached(returncode, wall_s, started_at, not ended, left)
        finally:
            detector.release()
            guard.release()
    except BaseException:  # nobody would look after it any more
        _end_all(process, token, heard)
        process.wait()
        raise


def _attend(
    process: subprocess.Popen[bytes],
    began: float,
    heard: Heard,
    detector: SignalDetector,
    has_enough: Callable[[], bool],
    tick: Tick,
    say: Callable[[str], None],
) -> bool:
    """Wait for the end; `False` where the command must be ended."""
    enough_at: float | None = None
    passed_on = told = False
    while not ended_within(process, LOOK_EVERY_S):
        tick(time.perf_counter() - began)
        now = time.monotonic()
        if heard.first_at is not None:
            since = now - heard.first_at
            if len(heard.signals) > 1 or since >= INTERRUPT_GRACE_S:
                return False
            if not passed_on and since >= FORWARD_AFTER_S:
                passed_on = True
                if not detector.saw(heard.signals[0]):
                    process.send_signal(heard.signals[0])
            if not told and since >= 2 * FORWARD_AFTER_S:
                say(
                    f"the command has not ended yet; it has {INTERRUPT_GRACE_S:g} s, Ctrl-C again "
                    "ends it now"
                )
                told = True
        elif enough_at is not None:
            if now - enough_at >= ENOUGH_GRACE_S:
                return False
        elif has_enough():
            enough_at = now
    return True


def _end_all(process: subprocess.Popen[bytes], token: tuple[str, str], heard: Heard) -> None:
    """End everything of the command: asked first, then made to. Another Ctrl-C skips the asking."""
    before = len(heard.signals)
    # Now: what has lost its parent is not found below it any more.
    known = set(_living(process, token))
    watchdog.send_each(signal.SIGTERM, sorted(known))
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and len(heard.signals) == before:
        if not (set(_living(process, token)) | _still(known)):
            break
        time.sleep(0.05)
    for _ in range(3):  # a process may have forked between the listing and the signal
        watchdog.send_each(signal.SIGKILL, sorted(set(_living(process, token)) | _still(known)))
    if process.poll() is None:
        process.kill()


def _living(process: subprocess.Popen[bytes], token: tuple[str, str]) -> list[int]:
    variable, value = token
    found = watchdog.members(value, variable=variable)
    if process.poll() is None:
        found += [process.pid, *watchdog.descendants(process.pid)]
    return list(dict.fromkeys(found))


def _still(processes: set[int]) -> set[int]:
    """Those of them that have not ended. Ids are not given again within the seconds this takes."""
    return {process for process in processes if not watchdog.has_ended(process)}


def _left_running(token: tuple[str, str]) -> tuple[int, ...]:
    deadline = time.monotonic() + LINGER_S
    variable, value = token
    while True:
        left = watchdog.members(value, variable=variable)
        if not left or time.monotonic() >= deadline:
            return tuple(left)
        time.sleep(0.05)


_WAITS = (
    "import signal, sys\n"
    "for name in ('SIGINT', 'SIGHUP'):\n"
    "    signal.signal(getattr(signal, name), signal.SIG_DFL)\n"
    "sys.stdin.read()\n"
)
"""Ends with the first such signal, and when we do: its standard input is a pipe of ours."""


class SignalDetector:
    """Tells a signal to our whole group from one to us alone.

    Python does not say who sent a signal. A terminal sends Ctrl-C to every process of the group in its
    foreground, and Jupyter its interrupt to that of the kernel: a process of ours in the same group that does nothing gets
    it, too.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WAITS],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def saw(self, number: int) -> bool:
        """Whether it was sent to the whole group: the command has it already."""
        in_front = _terminal_group() in (None, os.getpgrp())
        return number != signal.SIGTERM and in_front and self.was_reached()

    def was_reached(self) -> bool:
        """Whether such a signal was sent to the whole group."""
        return self._process.poll() is not None

    def release(self) -> None:
        self._process.kill()
        self._process.communicate()


def _terminal_group() -> int | None:
    """The process group in the foreground of our terminal; `None` where there is none."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno())
    except (OSError, AttributeError):
        return None
