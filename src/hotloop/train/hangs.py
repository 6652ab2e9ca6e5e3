"""The hang watchdog: where no step ends for too long, all stacks are written down and the process ends for a restart.

Counted is the time in which this process runs and passes no boundary: one that was stopped, suspended or frozen, or
that a debugger holds, does not hang. Each rank has its own, so that every one shows where it waits.
"""

from __future__ import annotations

import faulthandler
import math
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hotloop.core.config import LoopConfig, RunConfig
from hotloop.core.files import storing
from hotloop.core.ranks import Ranks
from hotloop.probe.phases import PhaseClock

_AUTO_S = 600.0
_AUTO_STEPS = 50
_PATIENCE = 10
"""Times as slow counts what may take minutes: the first step, compiling, a save, text that is still being prepared."""
_COMPILERS = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py")
_DEBUGGERS = ("/pdb.py", "/bdb.py", "pydevd.py", "pydevd_frame.py", "pydevd_cython.pyx")


class Watchdog:
    """`with watchdog.watching(clock):` around steps that say `passed`; a thread calls `hang` every `tick_s`."""

    def __init__(self, config: LoopConfig, ranks: Ranks, directory: Path) -> None:
        setting = config.train.hang_timeout_s
        self._automatic = setting == "auto"
        auto_s = _AUTO_S if ranks.launched else math.inf
        self._timeout_s = auto_s if setting == "auto" else setting or math.inf
        self.tick_s = min(1.0, self._timeout_s / 20) if math.isfinite(self._timeout_s) else math.inf
        self._rank = ranks.rank
        self._streams = isinstance(config, RunConfig) and config.data.stream
        self._path = directory / f"stacks-rank-{ranks.rank}.txt"
        self._watched: tuple[PhaseClock, IO[bytes]] | None = None
        self._took: deque[float] = deque(maxlen=100)
        self.step, self._passed, self._seen = -1, 0, -1
        self._began = self._looked = self._idle_s = self._counted_s = 0.0
        self._lock = threading.Lock()
        self._patient = self._shown = False

    def passed(self, step: int | None = None) -> None:
        """A boundary: a step begins, or one within an evaluation."""
        self._passed += 1
        if step is not None:
            now = time.monotonic()
            self._patient = self.step < 0
            if not self._patient:
                self._took.append(now - self._began)
            self.step, self._began = step, now

    @contextmanager
    def watching(self, clock: PhaseClock) -> Iterator[None]:
        """Raises `EnvironmentFailed` where no file for the stacks can be made: in a hang it is too late."""
        if self.tick_s == math.inf:
            yield
            return
        with storing(self._path, "write stacks"):
            file = self._path.open("ab", buffering=0)
        with file:
            self.step, self._seen, self._watched = -1, -1, (clock, file)
            try:
                yield
            finally:
                with self._lock:
                    self._watched = None
        if not self._path.stat().st_size:
            self._path.unlink()

    def hang(self) -> str | None:
        """What hangs, in words, once the stacks of it were written and all other ranks had the time to write theirs."""
        with self._lock:
            now = time.monotonic()
            # While the process was stopped it did not hang.
            ran_s, self._looked = min(now - self._looked, 2 * self.tick_s), now
            if self._watched is None:
                return None
            clock, file = self._watched
            limit_s = self._timeout_s
            if self._automatic and self._took:
                limit_s = max(limit_s, _AUTO_STEPS * statistics.median(list(self._took)))
            if self._passed != self._seen:
                self._seen, self._shown = self._passed, False
                self._idle_s = self._counted_s = 0.0
                return None
            if _running(_DEBUGGERS) or _traced():
                return None
            phase = clock.innermost
            slow = (
                self._patient or phase == "checkpoint" or (self._streams and phase == "data_wait")
            )
            self._idle_s += ran_s
            self._counted_s += ran_s / (_PATIENCE if slow or _running(_COMPILERS) else 1)
            place = f"rank {self._rank} hangs in {phase} of step {self.step}"
            what = f"{place}: no boundary was passed for {self._idle_s:.0f} s"
            with suppress(OSError):
                if self._counted_s >= limit_s and not self._shown:
                    self._shown = True
                    file.write(f"{time.ctime()}: {what}\n".encode())
                    faulthandler.dump_traceback(file, all_threads=True)
            ends = self._counted_s > limit_s + min(10.0, self._timeout_s / 4)
            return f"{what}; its stacks are in {self._path}" if ends else None


def _running(sources: tuple[str, ...]) -> bool:
    """True if a function of one of these files is at work in any thread."""
    frames = list(sys._current_frames().values())
    while frames:
        frame = frames.pop()
        if frame.f_code.co_filename.endswith(sources):
            return True
        frames += [frame.f_back] if frame.f_back is not None else []
    return False


def _traced() -> bool:
    """True if gdb or strace holds this process."""
    status = Path("/proc/self/status")
    return status.exists() and "TracerPid:\t0\n" not in status.read_text(encoding="ascii")
