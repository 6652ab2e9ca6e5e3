"""What the probe itself costs, measured in the process that it watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotloop.probe.attach.passes import watched_call
from hotloop.probe.attach.step_calls import ClosedStep
from hotloop.probe.attach.watch import Watch
from hotloop.probe.background import Background
from hotloop.probe.entry import step_hook

BLOCKS = 5
REPEATS = 300


class Cost:
    """Cost of a clock read, of what only passes through, of torch's hooks, of the probe's own work and threads."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.read_s: float | None = None
        self._pass_s = 0.0
        self._hook_s = 0.0
        self.threads: tuple[Background, ...] = ()
        """The probe's own."""
        self._own_told = self._threads_told = 0.0

    def measure(self) -> None:
        """Take a few milliseconds to measure; half of a watched call that does nothing is one read."""
        watch = Watch(self._watch.directory)

        def nothing(module: Any) -> None:
            return None

        call = watched_call(watch, nothing)
        self.read_s = _median_s(lambda: call(None)) / 2
        depth = watch.enter("forward")
        self._pass_s = _median_s(lambda: call(None))
        watch.leave(depth)
        hook = step_hook(nothing)
        self._hook_s = _median_s(lambda: hook(None, (), {}))

    def extra_reads(self, steps: Sequence[ClosedStep]) -> list[int]:
        """What the rest of the probe cost in each of these steps, in clock reads.

        What its threads used since the last time goes to the last step.
        """
        if not self.read_s:
            return [0] * len(steps)
        threads = sum(each.cpu_s for each in self.threads)
        found = []
        for step in steps:
            seconds = max(step.own_s - self._own_told, 0.0)
            seconds += step.passed * self._pass_s + step.hooks * self._hook_s
            if step is steps[-1]:
                seconds += max(threads - self._threads_told, 0.0)
            self._own_told = step.own_s
            found.append(round(seconds / self.read_s))
        self._threads_told = threads
        return found


def _median_s(call: Callable[[], Any]) -> float:
    blocks = []
    with torch.enable_grad():
        for _ in range(BLOCKS):
            start = time.perf_counter()
            for _ in range(REPEATS):
                call()
            blocks.append((time.perf_counter() - start) / REPEATS)
    return sorted(blocks)[BLOCKS // 2]
