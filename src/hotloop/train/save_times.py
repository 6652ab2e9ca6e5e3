"""When the next checkpoint is due: every so many steps, or as `checkpoint.every_steps: auto` learns while training.

What is written beside the steps is only safe some steps later. So that a process that is killed never loses more than the interval,
such a save begins as many steps early as writing takes (the first one of a process, of which that is not known, half an interval), and
the steps stand still where it takes longer.

Saves change nothing that is learned, so that a run may move them and still continues to the same bits.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from hotloop.core.files import SESSIONS_FILE
from hotloop.core.sessions import SaveInterval, read_sessions
from hotloop.core.step import StepRecord
from hotloop.probe.recorder import newest_steps

if TYPE_CHECKING:
    from hotloop.train.run import Run

FIRST_STEPS = 20
"""Between the first saves, until it is known what they cost."""
WINDOW = 200
"""Steps and saves that are remembered."""
MARGIN = 1.25
"""A save may take so many times as long as the one before, and the steps still do not wait for it."""
DAY_S = 86_400.0
MAX_SHARE = 0.1
"""Saves take no more of the time than this, however often a run is interrupted."""
MAX_S = 3600.0
"""Nor are they further apart than this, however rarely."""


def best_interval_s(save_s: float, between_s: float) -> float:
    """Seconds of training between saves that cost `save_s`, with `between_s` between interruptions on average.

    Young's sqrt(2 save_s between_s) (Communications of the ACM 17, 1974) with the next terms of Daly (A higher order
    estimate of the optimum checkpoint interval for restart dumps, FGCS 22, 2006, equation 37), which count where a
    save takes long beside the time between interruptions.
    """
    if save_s >= 2 * between_s:
        return between_s
    part = math.sqrt(save_s / (2 * between_s))
    return math.sqrt(2 * save_s * between_s) * (1 + part / 3 + part**2 / 9) - save_s


def interval_steps(save_s: float, step_s: float, per_day: float) -> int:
    """The same in steps of `step_s`, for so many interruptions a day, within its bounds."""
    seconds = best_interval_s(save_s, DAY_S / per_day)
    seconds = min(max(seconds, save_s * (1 / MAX_SHARE - 1)), MAX_S)
    return max(1, round(seconds / step_s))


def interruptions_per_day(seen: int, trained_s: float) -> float:
    """Estimated from what a run has seen, and one in a day that it has not: so many are expected before any was seen."""
    return (1 + seen) / (1 + trained_s / DAY_S)


class SaveTimes:
    """Also an observer: of `auto`, the records say what steps take and what saves cost."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._config = run.config.checkpoint
        self._limit = 0
        """The most steps that a kill may lose; 0 where nothing is saved but the end."""
        self._last = 0
        self._next: int | None = None
        self._decided_at = 0
        """When the next one is chosen: half way from the last, by when there are steps to go by."""
        self._steps_s: deque[float] = deque(maxlen=WINDOW)
        self._saves_s: deque[float] = deque(maxlen=WINDOW)
        self._slower_s: deque[float] = deque(maxlen=WINDOW)
        self._since: list[float] | None = None
        """Of the steps since the last save; `None` in the first ones of a process, which are slow."""
        self._trained_s = 0.0
        self._num_killed = 0
        self._longest = FIRST_STEPS
        if self._config.every_steps == "auto" and run.sessions is not None:
            self._remember(run)
        self.saved(run.first_step)

    def _remember(self, run: Run) -> None:
        """What earlier processes of this run have seen."""
        for record in reversed(list(islice(newest_steps(run.steps_file), 10 * WINDOW))):
            self(record)
        *before, this = read_sessions(run.directory / SESSIONS_FILE)[0]
        self._num_killed = sum(each.ended_at is None for each in before)
        self._trained_s = sum(each.made_s for each in (*before, this))
        self._longest = longest_interval(run, "auto")

    def __call__(self, record: StepRecord) -> None:
        """Learn from a step."""
        if "resumed" in record.tags:
            self._since = None
        if "checkpoint" in record.tags:
            # What is written beside the steps slows those after a save, and not those before the next one.
            since = self._since or []
            half = len(since) // 2
            if half:
                self._slower_s.append(sum(since[:half]) - sum(since[-half:]))
            self._saves_s.append(record.host.get("checkpoint", 0.0))
            self._since = []
        elif self._saves_s:  # the steps waited for what was written beside them
            self._saves_s[-1] += record.host.get("checkpoint", 0.0)
        own_s = record.wall_s - sum(record.host.get(name, 0.0) for name in ("checkpoint", "eval"))
        if self._since is not None:
            self._since.append(own_s)
        self._steps_s.append(own_s)
        self._trained_s += record.wall_s

    def due(self, done: int, *, now: bool) -> bool:
        """True if the state after so many steps is to be saved. Called on every rank; the first one decides."""
        every = self._config.every_steps
        if (
            every != "auto" and not self._early
        ):  # stateless: a rollback goes back behind the last save
            return now or (every > 0 and done % every == 0)
        if done == self._decided_at:
            self._next = self._last + self._run.group.decided(self._period)
        return now or (self._next is not None and done >= self._next)

    def saved(self, done: int) -> None:
        """It was saved. Called on every rank; the first one decides when the next save is."""
        every = self._config.every_steps
        self._limit = self._run.group.decided(self._interval) if every == "auto" else every
        self._last, self._next, self._decided_at = done, None, 0
        if self._early:
            self._decided_at = done + self._half
        elif every == "auto":
            self._next = done + self._limit

    def held(self, done: int) -> bool:
        """True if the save that is being written has to be waited for before the next step."""
        saver = self._run.saver
        return self._early and saver.is_writing and done - saver.committed >= self._limit

    @property
    def _early(self) -> bool:
        """With `keep_best` saves stay at the steps that are evaluated; where a rollback leads must not depend on the clock."""
        stay = self._config.keep_best or self._run.config.stability.spikes == "rollback"
        return self._config.background is not False and not stay and self._limit > 0

    @property
    def _half(self) -> int:
        return math.ceil(self._limit / 2)

    def _period(self) -> int:
        """Steps from the last save to the next one, at least half an interval."""
        if not self._run.save_mode.will_be_beside():
            fixed = self._config.every_steps != "auto"
            return max(self._limit - (self._last % self._limit if fixed else 0), self._half)
        takes_s = self._run.saver.took_s
        if takes_s is None or not self._steps_s:
            return self._half
        step_s = max(statistics.median(self._steps_s), 1e-6)
        return max(self._half, self._limit - 1 - math.ceil(MARGIN * takes_s / step_s))

    def _interval(self) -> int:
        if not self._saves_s:
            return FIRST_STEPS
        slower_s = statistics.fmean(self._slower_s) if self._slower_s else 0.0
        save_s = max(statistics.fmean(self._saves_s) + max(slower_s, 0.0), 1e-6)
        per_day = self._config.interruptions_per_day
        if per_day is None:
            per_day = interruptions_per_day(self._num_killed, self._trained_s)
        steps = interval_steps(save_s, max(statistics.median(self._steps_s), 1e-6), per_day)
        self._longest = max(self._longest, steps)
        if self._run.sessions is not None:
            self._run.sessions.interval(SaveInterval(steps, self._longest, save_s, per_day))
        return steps


def longest_interval(run: Run, every_steps: int | str) -> int:
    """The most steps that were between two saves of a run with this setting, so far."""
    if isinstance(every_steps, int):
        return every_steps
    sessions, _ = read_sessions(run.directory / SESSIONS_FILE)
    return max([FIRST_STEPS, *(s.interval.longest_steps for s in sessions if s.interval)])
