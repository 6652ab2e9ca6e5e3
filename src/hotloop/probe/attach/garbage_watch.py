"""Python's garbage collections, as they happen."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import gc
import sys
import threading
import time
from collections import Counter
from typing import Any

from hotloop.core.census import CollectionUse
from hotloop.probe import entry
from hotloop.probe.attach.sites import Place, caller
from hotloop.probe.attach.step_calls import MAX_PLACES, Tally
from hotloop.probe.attach.watch import Watch
from hotloop.probe.background import COLLECTED_S

LEFT_AFTER_S = 0.001


class GarbageWatch:
    """Counts collections of the steps that count, and tags those with a full one."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._began = 0.0
        self._began_cpu_s = 0.0
        self._is_in_work = False
        """The probe was at work when it began: it is the script's garbage, whoever allocates next."""
        self.clear()

    def clear(self) -> None:
        self._all, self._full = Tally(), Tally()
        self._outside_s = 0.0
        self._places: Counter[Place] = Counter()

    def install(self) -> None:
        saw = self._saw
        gc.callbacks.append(saw)
        self._before = sys.unraisablehook
        sys.unraisablehook = hook = self._unraisable

        def release() -> None:
            with contextlib.suppress(ValueError):  # the script may have emptied the list
                gc.callbacks.remove(saw)
            if sys.unraisablehook == hook:
                sys.unraisablehook = self._before

        entry.at_end(release)

    def use(self) -> CollectionUse:
        most = self._places.most_common(1)
        return CollectionUse(
            num=self._all.num,
            seconds=self._all.seconds,
            num_full=self._full.num,
            full_s=self._full.seconds,
            site=self._watch.sites.name(most[0][0]) if most else None,
            outside_s=self._outside_s,
        )

    def _unraisable(self, unraisable: Any) -> None:
        """A signal that arrives while Python is in the callback raises there, and would be lost: raise it again."""
        if unraisable.object != self._saw:
            self._before(unraisable)
            return
        if issubclass(unraisable.exc_type, (RecursionError, MemoryError)):
            return  # ours, not a signal's
        _thread.start_new_thread(_raise_again, (threading.get_ident(), unraisable.exc_type))

    def _saw(self, phase: str, info: dict[str, int]) -> None:
        watch = self._watch
        if not watch.active:
            return
        if phase == "start":
            if threading.get_ident() in COLLECTED_S:
                self._began_cpu_s = time.thread_time()
            self._is_in_work = watch.here() and watch.pause()
            self._began = time.perf_counter()
            return
        seconds = time.perf_counter() - self._began
        if (thread := threading.get_ident()) in COLLECTED_S:
            COLLECTED_S[thread] += time.thread_time() - self._began_cpu_s
        if self._is_in_work:
            watch.go_on()
        if info["generation"] == 2:
            watch.tag("gc")
        if not watch.counting:
            return
        self._all.add(seconds)
        if watch.clock.innermost == "unattributed":
            self._outside_s += seconds
        if info["generation"] == 2:
            self._full.add(seconds)
            place = watch.sites.place(caller())
            if place is not None and len(self._places) < MAX_PLACES:
                self._places[place] += 1


def _raise_again(thread: int, kind: type[BaseException]) -> None:
    """In that thread, once it has left the callback: without the words, since only a class can be raised there."""
    time.sleep(LEFT_AFTER_S)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
