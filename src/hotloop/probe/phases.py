"""The clock of the training loop: exclusive phases of host wall time, one read per boundary.

Every read closes the interval since the last one and gives it to whatever was open: the innermost
phase, or `unattributed` when none was. So `unattributed` is measured like the others, nothing is
negative, and nothing is counted twice. Wall time is read from a second clock, so that the sum of
the phases can be held against it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from hotloop.core.step import HOST_PHASES


class PhaseClock:
    """Accumulates seconds per phase between `start_step` and `end_step`.

    Phases nest: entering one pauses the one around it. Names outside `HOST_PHASES` raise `KeyError`.
    """

    def __init__(self) -> None:
        self._phases = {name: _Phase(self, name) for name in HOST_PHASES if name != "unattributed"}
        self._seconds: dict[str, float] = {}
        self.opened: list[str] = ["unattributed"]
        """All that is open, outermost first: always the same list, for others to read only."""
        self.last = time.perf_counter()
        """When the last boundary was."""
        self._step_started = time.monotonic()
        self._between: list[tuple[float, float]] | None = None
        self.reads = 0

    def phase(self, name: str) -> _Phase:
        """`with clock.phase("forward"): ...`"""
        return self._phases[name]

    def start_step(self) -> None:
        """Open the first step. Later steps begin where the one before ended: no time falls between."""
        self._seconds = {}
        self.reads = 0
        self.last = time.perf_counter()
        self._step_started = time.monotonic()

    def end_step(self) -> tuple[float, dict[str, float], int]:
        """`(wall_s, seconds per phase, clock reads)` of the step that ends now; the next one begins.

        Call it with no phase open.
        """
        assert len(self.opened) == 1, (
            f"phase {self.opened[-1]!r} is still open at the end of a step"
        )
        return self.cut_step()

    def cut_step(self) -> tuple[float, dict[str, float], int]:
        """As `end_step`; what is open is cut at this moment, and continues in the next step."""
        self._switch()
        now = time.monotonic()
        wall, seconds, reads = now - self._step_started, self._seconds, self.reads
        self._step_started = now
        self._seconds = {}
        self.reads = 0
        return wall, seconds, reads

    @property
    def innermost(self) -> str:
        """What is open now; `unattributed` outside every phase. May be read from another thread."""
        return self.opened[-1]

    def remember(self) -> None:
        """From here on keep when nothing was open, for `remembered`."""
        self._between = []

    def remembered(self) -> list[tuple[float, float]]:
        """(begin, end) of each time since `remember` in which nothing was open, by `time.perf_counter`."""
        between, self._between = self._between or [], None
        return between

    def restart(self) -> None:
        """Begin again, with nothing open."""
        del self.opened[1:]
        self.start_step()

    def enter(self, name: str) -> int:
        """Open a phase where `with` cannot be used; the result is for `leave`. Names are not checked."""
        self._switch()
        self.opened.append(name)
        return len(self.opened) - 1

    def leave(self, depth: int) -> None:
        """Close it, and whatever was left open inside of it. -1: the innermost."""
        self._switch()
        del self.opened[depth:]

    def move(self, seconds: float, source: str, target: str) -> None:
        """Give part of what `source` took in this step to `target`, which turned out to have it."""
        seconds = min(seconds, self._seconds.get(source, 0.0))
        if seconds > 0.0:
            self._seconds[source] -= seconds
            self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def so_far(self, name: str) -> float:
        """Seconds of `name` in this step, up to the last boundary."""
        return self._seconds.get(name, 0.0)

    def _switch(self) -> None:
        """Give the time since the last boundary to what is open."""
        now = time.perf_counter()
        name = self.opened[-1]
        self._seconds[name] = self._seconds.get(name, 0.0) + (now - self.last)
        if self._between is not None and len(self.opened) == 1:
            self._between.append((self.last, now))
        self.last = now
        self.reads += 1


class _Phase:
    """Reused for every entry of one phase, so that a boundary costs one clock read and no allocation."""

    __slots__ = ("_clock", "_name")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        self._clock.enter(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clock.leave(-1)


def cost_s(call: Callable[[], object], repeats: int) -> float:
    """Seconds of CPU that a call takes, the median over blocks: others may have the CPU in each of them.

    Where the CPU clock ticks too seldom for a block, it is the seconds that passed.
    """
    blocks = []
    for _ in range(5):
        began, cpu_s = time.perf_counter(), time.thread_time()
        for _ in range(repeats):
            call()
        cpu_s, passed_s = time.thread_time() - cpu_s, time.perf_counter() - began
        blocks.append((min(cpu_s, passed_s) or passed_s) / repeats)
    return sorted(blocks)[2]


def clock_read_s(repeats: int = 2000) -> float:
    """Measured cost of one clock read, in seconds: half an empty phase."""
    phase = PhaseClock().phase("forward")

    def empty() -> None:
        with phase:
            pass

    return cost_s(empty, repeats) / 2
