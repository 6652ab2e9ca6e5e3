"""Puts the probe into this process: every hook now, threads and files only once it has made a step."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.probe import entry
from hotloop.probe.attach.batch_times import watch_fetches
from hotloop.probe.attach.connections import watch_connections
from hotloop.probe.attach.device_clock import DeviceClock
from hotloop.probe.attach.own_frames import (
    hide_own_frames,
    keep_probe_untraced,
    keep_warning_places,
)
from hotloop.probe.attach.passes import Cost, watch_passes
from hotloop.probe.attach.side_calls import watch_device_calls, watch_side_calls, when_cuda_starts
from hotloop.probe.attach.sites import caller
from hotloop.probe.attach.step_calls import Step
from hotloop.probe.attach.step_profiler import FIRST_STEP, StepProfiler
from hotloop.probe.attach.trainer_seen import trainer_seen
from hotloop.probe.attach.watch import Watch, num_ranks
from hotloop.probe.attach.writer import Parts, Writer
from hotloop.probe.background import pause_before_forks
from hotloop.probe.foreign_process import device_of, end_process
from hotloop.probe.machine import seconds_since_start

FEWEST_STEPS = 24
"""Counted at least where seconds decide: what the start is told from the rest by takes 20, and fixes are compared over
no more where steps are so slow."""
SLOW_STEPS, PATIENCE = 8, 2
"""So few do where they take so many times the seconds asked for: proving a fix takes hours where a step takes 15 s."""
LAST_STEP_FILE = "last-step"
LATER = 2
"""Steps from the decision to the end: by then the other ranks, which may be a step ahead, know of it."""


class Enough:
    """Asked at the end of each step. bound: steps that have to be counted, as `60`, or seconds of steps, as `60s`; `60s20`:
    20 steps at least, however slow.

    All ranks end after the same step, or the slower would wait for the faster and fail: steps are the same for all;
    for seconds the first rank decides, and says so in `LAST_STEP_FILE`.
    """

    def __init__(self, watch: Watch, profiler: StepProfiler, bound: str) -> None:
        self._watch = watch
        self._profiler = profiler
        self._steps = int(bound) if bound.isdecimal() else FEWEST_STEPS if bound else None
        seconds, of_time, least = bound.partition("s")
        self._seconds = float(seconds) if of_time else None
        self._least = int(least or SLOW_STEPS)
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
        if not self._profiler.over:
            return False
        if self._seconds is None:
            return watch.counted_steps >= self._steps
        seconds = self._seconds * (1 if watch.counted_steps >= self._steps else PATIENCE)
        return watch.counted_steps >= self._least and watch.counted_s >= seconds

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


def install(
    directory: Path,
    *,
    bound: str,
    profile_at_bound: bool = True,
    ended: Callable[[], object] = end_process,
    start_s: Callable[[], float | None] = seconds_since_start,
    saw: Callable[[Step], None] = lambda step: None,
    most_cost: float | None = None,
    beside_s: Callable[[], float] = lambda: 0.0,
) -> Callable[[BaseException | None], Cost]:
    """Hook this process. bound: call `ended` after so many steps that count, or seconds of them (see `Enough`), and after
    the profile. profile_at_bound: the profile comes after these steps; a loop that may end before them has it as early as
    without a bound. start_s: what its start has taken by now. saw: called with each step, in the thread that steps.
    most_cost: as `Watch`. beside_s: as `Cost`. Returns what writes all that was seen, and looks no longer: for the error that ended it, if one did; it returns
    what all this cost."""
    at_bound = profile_at_bound and bound.isdecimal()
    parts = Parts(directory, profile_after=int(bound) if at_bound else None, most_cost=most_cost)
    watch, writer = parts.watch, Writer(parts)
    parts.cost.beside_s = beside_s
    enough = Enough(watch, parts.profiler, bound)
    watch.saw = saw
    watch.at_boundary = partial(_at_boundary, parts)
    parts.model.start_so_far = start_s
    watch.after_boundary = partial(_after_boundary, parts, writer, enough, ended)
    _watch_memory(parts)
    _hook(parts)
    keep_probe_untraced()
    pause_before_forks(lambda: parts.cost.threads)
    os.register_at_fork(after_in_child=lambda: _forked(parts, writer))
    ends = (
        lambda: watch.guarded(writer.finish),
        lambda: watch.tried(parts.memory.finish, getattr(sys, "last_value", None)),
    )
    for at_exit in ends:
        atexit.register(at_exit)
    _watch_endings(watch, writer)

    def finish(error: BaseException | None) -> Cost:
        for at_exit in ends:  # or the memory of what comes later would be that of what was watched
            atexit.unregister(at_exit)
        watch.guarded(writer.finish)
        parts.memory.background.stop()
        watch.tried(parts.memory.finish, error)
        watch.active = False
        # What waits for forks and for the end keeps the watch for good; not those who were told, with all the steps.
        watch.saw, watch.after_boundary = (lambda step: None), (lambda: None)
        return parts.cost

    return finish


def _hook(parts: Parts) -> None:
    watch, loaders = parts.watch, parts.loaders
    watch_passes(
        watch,
        parts.boundary,
        parts.evaluations,
        saw_forward=parts.model.called,
        saw_backward=loaders.went_backward,
    )
    loaders.install()
    watch_fetches(watch.directory, loaders.fetched_here)
    watch_side_calls(watch, parts.boundary)
    watch_connections(watch.directory)
    keep_warning_places(watch.sites)
    hide_own_frames()
    when_cuda_starts(lambda: watch.tried(watch_device_calls, watch))
    parts.profiler.install()
    parts.switches.install()
    parts.garbage.install()
    entry.after_called_step(lambda: watch.guarded(parts.boundary.explicit))


def _watch_memory(parts: Parts) -> None:
    watch, memory = parts.watch, parts.memory
    memory.optimizers = parts.boundary.optimizers
    memory.step = lambda: watch.step
    memory.phase = lambda: "unattributed" if watch.resting else watch.clock.innermost
    memory.is_wanted = lambda: watch.active

    def made(optimizer: Any) -> None:
        memory.device = device_of(optimizer)
        memory.begin()

    parts.boundary.after_made = made


def _watch_endings(watch: Watch, writer: Writer) -> None:
    """Ends that run no exit handlers: what was seen by then is written before."""

    def ending(original: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.claimed or watch.other is not None:
            watch.tried(writer.finish)
        return original(*args, **kwargs)

    def replacing(original: Any, *args: Any, **kwargs: Any) -> Any:
        watch.tried(writer.flush)  # it may fail, and the process goes on
        return original(*args, **kwargs)

    def killing(original: Any, pid: int, *args: Any) -> Any:
        if pid == os.getpid():
            watch.tried(writer.flush)
        return original(pid, *args)

    entry.around_call(os, "_exit", ending)
    for name in ("execv", "execve", "abort"):
        entry.around_call(os, name, replacing)
    entry.around_call(os, "kill", killing)


def _at_boundary(parts: Parts) -> None:
    watch, profiler = parts.watch, parts.profiler
    if not profiler.over:
        watch.tried(profiler.at_boundary)
    if watch.step % 7 == 0:  # hardly the length of a profiler's schedule
        watch.tried(parts.switches.at_boundary)
    parts.compiling.at_boundary()


def _after_boundary(
    parts: Parts, writer: Writer, enough: Enough, ended: Callable[[], object]
) -> None:
    watch, profiler, busy = parts.watch, parts.profiler, parts.busy
    if not profiler.over or watch.profiling:
        watch.tried(profiler.after_boundary)
    if not watch.begun:
        if watch.most_cost is None:  # for trials, of which a block has none
            watch.tried(parts.imports.write, watch.directory)
        _begin(parts, writer)
    watch.resume()
    if watch.counting and not busy.began:  # from here on it is one that trains
        busy.look()
        if watch.device is not None:
            watch.tried(watch.device.first_counted)
    if enough() and parts.boundary.updates():
        began = time.perf_counter()
        writer.finish(stopped=True)
        watch.active = False
        parts.cost.end_s = time.perf_counter() - began
        ended()
    elif parts.boundary.rule in ("optimizer", "explicit") and not parts.boundary.nests:
        # Such steps are seen to end, each once, without looking at passes. In a short loop a late profile would be none.
        parts.cost.can_be_less = True
        watch.rest(at_most=math.inf if profiler.over else FIRST_STEP - 1 - watch.step)


def _begin(parts: Parts, writer: Writer) -> None:
    """After the first step: threads, and what the probe costs."""
    cost, watch = parts.cost, parts.watch
    watch.begun = True
    if parts.boundary.device.type == "cuda":
        watch.device = DeviceClock(parts.boundary.device, watch.clock.opened, watch.notes.append)
    parts.model.start_s = parts.model.start_so_far()
    parts.model.trainer = watch.tried(trainer_seen, caller()) or {}
    cost.measure(watch.directory)
    parts.memory.device = parts.boundary.device
    parts.memory.begin()
    cost.threads = (parts.sampler.background, writer.background, parts.memory.background)
    cost.begin()
    for each in cost.threads:
        each.start()

    def resume() -> None:
        for each in cost.threads:
            each.resume()

    watch.resume = resume


def _forked(parts: Parts, writer: Writer) -> None:
    watch = parts.watch
    watch.resume = lambda: None  # there are none in a child of fork
    if watch.claimed:
        parts.sampler.forked()
        parts.memory.background.forked()
        writer.forked()
    watch.forked()
