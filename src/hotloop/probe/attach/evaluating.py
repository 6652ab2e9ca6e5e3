"""Evaluation: what runs without gradients, and what lies between two such passes with nothing of training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hotloop.probe.attach.sites import Place, caller
from hotloop.probe.attach.watch import Watch

USUAL = 4
"""Of the last 8 steps: a pass without gradients that is part of most of them (a teacher, a rollout)
is no event that sets a step apart."""


class Evaluating:
    """Joins passes without gradients into evaluations. Runs on the thread that steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._place: Place | None = None
        self._began = 0.0
        self._ended = 0.0
        self._outside = 0.0
        """Unattributed seconds of the running step when the last pass ended."""
        self._step = -1
        self._passes = 0
        self.saw_eval: Callable[[], None] = _nothing
        self._recent: deque[int] = deque(maxlen=8)

    def begin_forward(self) -> None:
        """A forward pass without gradients has been opened on the clock."""
        self._watch.tried(self.saw_eval)
        self.begin()

    def begin(self) -> None:
        """A pass without gradients has been opened on the clock."""
        clock = self._watch.clock
        if not self._passes:
            self._began = clock.last
            self._place = self._watch.tried(_place, self._watch)
        elif self._step == self._watch.step:
            clock.move(clock.so_far("unattributed") - self._outside, "unattributed", "eval")
        self._passes += 1

    def end(self) -> None:
        """It has been closed."""
        self._ended = self._watch.clock.last
        self._outside = self._watch.clock.so_far("unattributed")
        self._step = self._watch.step

    def over(self) -> None:
        """Something of training happens: what was open is one evaluation."""
        if not self._passes:
            return
        watch = self._watch
        seconds = self._ended - self._began
        watch.calls.add("evaluations", "without gradients", self._place, seconds)
        if not self._recent or self._recent[-1] != watch.step:
            self._recent.append(watch.step)
        if sum(1 for step in self._recent if step > watch.step - 8) <= USUAL:
            watch.tag("eval")
        self._passes = 0


def _place(watch: Watch) -> Place | None:
    return watch.sites.place(caller())


def _nothing() -> None:
    """Nobody wants to know."""
