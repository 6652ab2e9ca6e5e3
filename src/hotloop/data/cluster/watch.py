"""The coordinator's view of a round: the executor's process, and what the ranks say of themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from hotloop.core.errors import EnvironmentFailed
from hotloop.data.cluster.round import Beat, Round, is_gone, this_machine
from hotloop.data.execute import Meter
from hotloop.data.pool import python_path

SILENT_S = 60.0
"""A rank that says nothing for so long is given up; its jobs are done again."""
_ENDING_S = 3.0


class Launch:
    """The executor's process. Use it as a context: it is ended with it, and all it started here."""

    def __init__(self, round_: Round) -> None:
        command = [sys.executable, "-m", "hotloop.data.cluster.launch"]
        with (round_.path / "logs" / "executor.log").open("wb") as log:
            try:
                # A session of its own: Ctrl-C is for the coordinator, which ends the rest.
                self._process = subprocess.Popen(
                    [*command, str(round_.path)],
                    stdin=subprocess.PIPE,  # closed by our end, however that comes
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": python_path()},
                    start_new_session=True,
                )
            except OSError as error:
                raise EnvironmentFailed(f"cannot start a process: {error.strerror}") from error

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended_within(0):
            self._process.terminate()  # Ray then leaves its cluster in order
            self._ended_within(_ENDING_S)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nothing is left of it
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _ended_within(self, seconds: float) -> bool:
        """Leaves it to be waited for: its number, and so the group's, stays its own."""
        if self._process.returncode is not None:
            return True
        deadline = time.monotonic() + seconds
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while os.waitid(os.P_PID, self._process.pid, options) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    @property
    def ended(self) -> bool:
        return self._ended_within(0)

    @property
    def was_killed(self) -> bool:
        """By a signal, perhaps ours. After it has ended."""
        return self._process.returncode is not None and self._process.returncode < 0

    def wait(self) -> int:
        return self._process.wait()


class Watch:
    """Which ranks are alive, and how far they are."""

    def __init__(self, round_: Round, ranks: int, meter: Meter) -> None:
        self.began = 0
        """Ranks that have said something."""
        self.settled = False
        """No rank does anything any more, and none is still to begin."""
        self._round = round_
        self._ranks = ranks
        self._meter = meter
        self._machine = this_machine()
        self._heard: dict[int, tuple[Beat, float]] = {}

    def look(self) -> None:
        now = time.monotonic()
        moved = [0, 0, 0]
        for rank, beat in self._round.beats().items():
            before = self._heard.get(rank)
            if before is not None and before[0] == beat:
                continue
            self._heard[rank] = (beat, now)
            same_life = before is not None and before[0].life == beat.life
            # A new life counts what was done before as done, and its text from nothing.
            old = before[0] if before is not None else None
            moved[0] += beat.planned - (old.planned if old is not None else 0)
            moved[1] += beat.text - (old.text if old is not None and same_life else 0)
            moved[2] += beat.tokens - (old.tokens if old is not None and same_life else 0)
        self.began = len(self._heard)
        self.settled = self.began == self._ranks and all(
            self._is_over(beat, now - at) for beat, at in self._heard.values()
        )
        if any(moved):
            self._meter(*moved)

    def _is_over(self, beat: Beat, silent_s: float) -> bool:
        return beat.ended or silent_s > SILENT_S or is_gone(beat, self._machine)


def listed(jobs: Sequence[int], most: int = 5) -> str:
    """`3, 7, 9, ...`"""
    shown = ", ".join(map(str, jobs[:most]))
    return shown + (", ..." if len(jobs) > most else "")
