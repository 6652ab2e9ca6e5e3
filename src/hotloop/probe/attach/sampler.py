"""A thread that looks where the stepping thread is, 25 times a second; of a block half as often once there are `MANY` samples.

A sample is a phase, the innermost line of the user's own code, and what that line was calling. It is late by as long as
another thread holds on to Python (`FineSwitching`). Its own cost is measured by the thread's CPU clock: while it runs, the
script's Python does not.
"""

from __future__ import annotations

import gc
import inspect
import os
import selectors
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from types import CodeType, FrameType

from hotloop.core.census import LineUse
from hotloop.probe.attach.sites import line_of, module_of, outward
from hotloop.probe.attach.watch import Watch
from hotloop.probe.background import Background

EVERY_S = 0.04
SHOWN = 60
FINE_S = 0.0005
MANY = 100
"""Samples that name lines well enough for a cost of half to do."""
MOST_CROWDED = 0.05
"""Share of the samples in which other threads may compute."""

COLLECTS_ANYWHERE = sys.version_info < (3, 12)
"""Making a frame's object may collect garbage. What that runs lets the other thread go on, whose frame may then be gone:
its memory is read all the same, and the process ends with SIGSEGV (python/cpython#106883, #99110)."""

_WORKING = frozenset({Watch.guarded.__code__, Watch.tried.__code__})

Key = tuple[str, CodeType, int, CodeType, CodeType | None]
"""(phase, the user's code, the instruction there, the innermost code, what of the user's feeds the loop there)"""
_FEEDING = frozenset({"__next__", "__iter__", "__getitem__", "__getitems__"})
_MANAGERS = f"{os.sep}contextlib.py"


class Sampler:
    """Counts samples by step until it is known whether the step counts."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.background = Background("hotloop-sampler", self._turn, watch.note_now, first_s=EVERY_S)
        self._switching = FineSwitching()
        self._pending: defaultdict[int, Counter[tuple[int, Key]]] = defaultdict(Counter)
        """By step; each with the number of its `span`, or 0."""
        self._whole: Counter[Key] = Counter()
        self.counted = 0
        """Samples of the steps that count."""

    def close_step(self, step: int, *, counted: bool) -> None:
        """From the writer's thread, for each closed step: keep its samples, or drop them."""
        samples = self._pending.pop(step, None)
        if samples and counted:
            for (span, key), number in samples.items():
                is_outside = span and span in self._watch.outside
                self._whole[("unattributed", *key[1:]) if is_outside else key] += number
            self.counted += sum(samples.values())

    def stop(self) -> None:
        self.background.stop()
        self._switching.end()

    def forked(self) -> None:
        """In a child."""
        self.background.forked()
        self._switching.end()

    def clear(self) -> None:
        self._pending.clear()
        self._whole.clear()
        self.counted = 0

    def lines(self) -> tuple[LineUse, ...]:
        """The lines with most samples."""
        if not self.counted:
            return ()
        sites = self._watch.sites
        merged: Counter[tuple[str, str, str, str | None, bool]] = Counter()
        for (phase, code, instruction, inner, feeder), number in self._whole.items():
            site = f"{sites.short(code.co_filename)}:{line_of(code, instruction)}"
            inside = (
                None if inner is code else f"{module_of(inner.co_filename)}.{inner.co_qualname}"
            )
            feeds = feeder is not None and feeder not in self._watch.trains
            merged[phase, site, code.co_qualname, inside, feeds] += number
        return tuple(
            LineUse(phase, site, function, number / self.counted, inside, feeds)
            for (phase, site, function, inside, feeds), number in merged.most_common(SHOWN)
        )

    def _turn(self) -> float | None:
        if not self._watch.active:
            self._switching.end()
            return None
        if self._watch.resting:
            return EVERY_S
        holds = COLLECTS_ANYWHERE and gc.isenabled()
        if holds:
            gc.disable()
        try:
            self._sample()
        finally:
            if holds:
                gc.enable()
        is_seldom = self._watch.most_cost is not None and self.counted > MANY
        return 2 * EVERY_S if is_seldom else EVERY_S

    def _sample(self) -> None:
        watch = self._watch
        frames = sys._current_frames()
        self._switching.look(frames, watch.thread)
        frame = frames.get(watch.thread)
        frames.clear()  # it holds the frame here, which holds it, and so all that the script has
        if frame is None:
            return
        step, phase = watch.step, watch.clock.innermost
        sites = watch.sites
        while frame is not None and sites.is_probe(frame.f_code):
            if frame.f_code in _WORKING:
                return  # nor is it in the time of the phase
            frame = frame.f_back
        place = sites.place(frame)
        if frame is None or place is None:
            return
        feeder = None
        if phase == "unattributed":
            own = sites.own_frames(frame)
            feeder = next((each.f_code for each in own if _feeds(each)), None)
        span = watch.span if watch.waits else 0
        if phase == "unattributed" and watch.evaluates:
            phase, span = "eval", watch.span
        self._pending[step][span, (phase, place[0], place[1], frame.f_code, feeder)] += 1


def _feeds(frame: FrameType) -> bool:
    """Whether its caller iterates over what this gives; a generator may be a context manager's, too."""
    code = frame.f_code
    if code.co_name in _FEEDING:
        return True
    by = frame.f_back
    is_generator = bool(code.co_flags & inspect.CO_GENERATOR) and code.co_name != "<genexpr>"
    return is_generator and by is not None and not by.f_code.co_filename.endswith(_MANAGERS)


class FineSwitching:
    """A shorter switch interval of Python's, for as long as no other thread than the one that steps computes in it.

    A sample waits until the thread that steps lets go: after the usual 5 ms, or where it calls C. Of Python in shorter stretches
    none would be seen, and what is called after them would have their samples. Where other threads compute, the
    interval is part of how they share Python with the training, and stays what it is.
    """

    def __init__(self) -> None:
        self._usual_s: float | None = None
        """What it was before."""
        self._is_over = False
        self._looks = self._crowded = 0

    def look(self, frames: Mapping[int, FrameType], stepping: int) -> None:
        """frames: of each thread. stepping: the thread that steps."""
        both = (stepping, threading.get_ident())
        others = (frame for thread, frame in frames.items() if thread not in both)
        usual = sys.getswitchinterval()
        self._looks += 1
        self._crowded += not all(map(_waits, others))
        if self._crowded > 1 + MOST_CROWDED * self._looks:
            self._put_back()
        elif self._usual_s is None and not self._is_over and usual > FINE_S:
            self._usual_s = usual
            sys.setswitchinterval(FINE_S)

    def end(self) -> None:
        """For good."""
        self._is_over = True
        self._put_back()

    def _put_back(self) -> None:
        """As it was, where nobody has set another one since."""
        usual, self._usual_s = self._usual_s, None
        if usual is not None and abs(sys.getswitchinterval() - FINE_S) < 1e-6:
            sys.setswitchinterval(usual)


_OWN_THREAD = Background._run.__code__
_WAITING = frozenset({threading.__file__, selectors.__file__})


def _waits(frame: FrameType) -> bool:
    """Whether a thread waits for another one or for a pipe, or is the probe's own."""
    if frame.f_code.co_filename in _WAITING:
        return True
    return any(each.f_code is _OWN_THREAD for each in outward(frame))
