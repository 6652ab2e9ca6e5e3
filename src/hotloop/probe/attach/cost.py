"""What the probe itself costs, measured in the process that it watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from hotloop.probe.attach.passes import watched_call
from hotloop.probe.attach.watch import Watch
from hotloop.probe.entry import step_hook

BLOCKS = 5
REPEATS = 300


class Cost:
    """Of a clock read, of what only passes through, of torch's hooks, of the probe's own work and threads."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.read_s: float | None = None
        self._pass_s = 0.0
        self._hook_s = 0.0
        self.threads: list[Callable[[], float]] = []
        """Each tells the CPU seconds that a thread of the probe has used."""
        self._told = 0.0

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

    def extra_reads(self) -> int:
        """Since the last time: calls that were passed through and what the threads did, as clock reads."""
        if not self.read_s:
            return 0
        threads = sum(each() for each in self.threads)
        threads += self._watch.own_s
        seconds = max(threads - self._told, 0.0)
        seconds += self._watch.passed * self._pass_s + self._watch.hooks * self._hook_s
        self._told = threads
        return round(seconds / self.read_s)


def _median_s(call: Callable[[], Any]) -> float:
    blocks = []
    with torch.enable_grad():
        for _ in range(BLOCKS):
            start = time.perf_counter()
            for _ in range(REPEATS):
                call()
            blocks.append((time.perf_counter() - start) / REPEATS)
    return sorted(blocks)[BLOCKS // 2]
