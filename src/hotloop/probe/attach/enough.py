"""When the examination has seen enough of a command that would train for longer."""

from __future__ import annotations

from pathlib import Path

from hotloop.probe.attach.step_profiler import StepProfiler
from hotloop.probe.attach.summary import num_ranks
from hotloop.probe.attach.watch import Watch

FEWEST_STEPS = 40
"""Counted at least where seconds decide: fixes are compared over about half of them."""
LAST_STEP_FILE = "last-step"
LATER = 2
"""Steps from the decision to the end: by then the other ranks, which may be a step ahead, know of it."""


class Enough:
    """Asked at the end of each step. bound: steps that have to be counted, as `60`, or seconds of steps, as `60s`.

    All ranks end after the same step, or the slower would wait for the faster and fail: steps are the same for all;
    for seconds the first rank decides, and says so in `LAST_STEP_FILE`.
    """

    def __init__(self, watch: Watch, profiler: StepProfiler, bound: str) -> None:
        self._watch = watch
        self._profiler = profiler
        self._steps = int(bound) if bound.isdecimal() else FEWEST_STEPS if bound else None
        self._seconds = float(bound[:-1]) if bound.endswith("s") else None
        self._last: int | None = None

    def __call__(self) -> bool:
        """Whether to end the process now."""
        if self._steps is None:
            return False
        if self._seconds is None or num_ranks() == 1:
            return self._is_seen()
        if self._last is None:
            self._last = self._agreed(self._watch.directory / LAST_STEP_FILE)
        return self._last is not None and self._watch.step >= self._last

    def _is_seen(self) -> bool:
        watch = self._watch
        assert self._steps is not None
        return (
            self._profiler.over
            and watch.counted_steps >= self._steps
            and watch.counted_s >= (self._seconds or 0.0)
        )

    def _agreed(self, file: Path) -> int | None:
        if self._watch.rank != "0":
            try:
                return int(file.read_text(encoding="ascii"))
            except (OSError, ValueError):  # not decided yet
                return None
        if not self._is_seen():
            return None
        last = self._watch.step + LATER
        file.write_text(str(last), encoding="ascii")
        return last
