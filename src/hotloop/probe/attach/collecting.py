"""Python's garbage collections, as they happen."""

from __future__ import annotations

import gc
import time

from hotloop.core.census import CollectionUse
from hotloop.probe.attach.watch import Watch


class Collecting:
    """Counts collections of the steps that count, and tags those with a full one."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._began = 0.0
        self.clear()

    def clear(self) -> None:
        self._num = self._num_full = 0
        self._seconds = self._full_s = 0.0

    def install(self) -> None:
        gc.callbacks.append(self._saw)

    def use(self) -> CollectionUse:
        return CollectionUse(
            num=self._num, seconds=self._seconds, num_full=self._num_full, full_s=self._full_s
        )

    def _saw(self, phase: str, info: dict[str, int]) -> None:
        watch = self._watch
        if not watch.active:
            return
        if phase == "start":
            self._began = time.perf_counter()
            return
        if info["generation"] == 2:
            watch.tag("gc")
        if not watch.counting:
            return
        seconds = time.perf_counter() - self._began
        self._num += 1
        self._seconds += seconds
        if info["generation"] == 2:
            self._num_full += 1
            self._full_s += seconds
