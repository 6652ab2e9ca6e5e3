"""Evaluation: passes without gradients that evaluate, and what lies between two with nothing of training.

A pass without gradients evaluates if its module is in evaluation mode, or follows a batch of a loader
that is iterated for that. Else it is a forward like others: an agent that plays, a teacher's labels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

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
        self.passes = 0
        """Of the evaluation that is open: `over` has something to do only where there are some."""
        self.saw_eval: Callable[[], None] = _nothing
        self._recent: deque[int] = deque(maxlen=8)

    def phase_of(self, module: Any) -> str:
        """Of a forward without gradients that is about to begin."""
        watch = self._watch
        if watch.here():
            watch.tried(self.saw_eval)
        return "forward" if module.training and not watch.evaluates else "eval"

    def begin(self) -> None:
        """A pass that evaluates, or a fetch for it, has been opened on the clock."""
        clock = self._watch.clock
        if not self.passes:
            self._began = clock.last
            self._place = self._watch.tried(_place, self._watch)
        elif self._step == self._watch.step:
            clock.move(clock.so_far("unattributed") - self._outside, "unattributed", "eval")
        self.passes += 1
        self._watch.evaluates = True

    def end(self) -> None:
        """It has been closed."""
        self._ended = self._watch.clock.last
        self._outside = self._watch.clock.so_far("unattributed")
        self._step = self._watch.step

    def over(self) -> None:
        """Something of training happens: what was open is one evaluation."""
        if not self.passes:
            return
        watch = self._watch
        watch.evaluates = False
        seconds = self._ended - self._began
        watch.calls.add("evaluations", "without gradients", self._place, seconds)
        if not self._recent or self._recent[-1] != watch.step:
            self._recent.append(watch.step)
        if sum(1 for step in self._recent if step > watch.step - 8) <= USUAL:
            watch.tag("eval")
        self.passes = 0


def _place(watch: Watch) -> Place | None:
    return watch.sites.place(caller())


def _nothing() -> None:
    """Nobody wants to know."""
