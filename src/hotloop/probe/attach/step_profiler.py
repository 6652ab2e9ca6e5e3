"""A few steps under torch's profiler: tagged `profiled`, never counted, never while the script profiles."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import _utils_internal
from torch.torch_version import TorchVersion

from hotloop.core.census import NO_OPTIMIZER
from hotloop.probe import entry
from hotloop.probe.attach.operators import Seen, Span, summed
from hotloop.probe.attach.watch import Watch

FIRST_STEP = 41
"""Not a round number: there scripts evaluate and save. Once only: kineto may crash when it is used again."""
SLOW_AFTER_S = 60.0
"""A script whose steps take seconds is profiled from the first step that comes so late, `SOONEST` at least."""
SOONEST = 8
STEPS = 3
"""One where a cost is kept to: to collect what a step did takes as long as such a step itself."""
MOST_KEPT = 20_000
"""Events, of some 4 kB each, that are kept until the watch ends."""
LONG_STEP_S = 0.25
"""One such step holds enough operations; three could take many seconds to sum."""
_LOG_LEVEL = "KINETO_LOG_LEVEL"


class StepProfiler:
    """Opens and closes at boundaries, on the thread that steps: a profiler belongs to its thread."""

    def __init__(
        self, watch: Watch, updates: Callable[[], bool], *, after_counted: int | None
    ) -> None:
        self._watch = watch
        self._updates = updates
        self._after_counted = after_counted
        self._began_at = time.monotonic()
        self._profiler: Any = None
        self._own = False
        self._num = STEPS if watch.most_cost is None else 1
        self._left = 0
        self.is_kept = False
        self._kept: Any = None
        """Until the watch ends: memory that it leaves free changes when the allocator gives memory back, and with it how long a
        CPU's later steps take."""
        self._sum: Callable[[], Seen] | None = None
        self._captured = False
        self._since = self._ended = self._ended_cpu_s = 0.0
        self.over = False
        self.seen: Seen | None = None
        self._waited_s = 0.0
        self._why_not: str | None = None

    @property
    def why_not(self) -> str:
        """Why nothing was seen."""
        if self._why_not is not None:
            return self._why_not
        after, watch = self._after_counted, self._watch
        if after is None:
            return f"no profile: torch's profiler is at work from step {FIRST_STEP} on, and {watch.step} were made"
        return f"no profile: torch's profiler is at work after {after} counted steps, and {watch.counted_steps} were counted"

    def install(self) -> None:
        """Know of it when the script profiles."""
        entry.around_call(torch.autograd.profiler.profile, "__init__", self._making)
        entry.around_call(torch.profiler.profile, "__init__", self._making)
        entry.around_call(torch.cuda.CUDAGraph, "capture_begin", self._captures)

    def after_boundary(self) -> None:
        """A step has begun: open, if it is time."""
        watch = self._watch
        if self.over:
            if watch.profiling:
                watch.set_profiling(on=False)
            return
        if self._profiler is not None or not self._is_time() or _is_capturing():
            return
        if not self._updates():  # not yet a training, and it is profiled once only
            self._why_not = "no profile: no update of the weights was seen"
            return
        if self._crashes_on_graphs():
            self._give_up("no profile: the script uses CUDA graphs, which this CUDA cannot profile")
            return
        if threading.current_thread() is not threading.main_thread():
            # It could not be ended there when the interpreter ends, and would crash it.
            self._give_up("no profile: the script trains on another thread than its first")
            return
        if torch._C._autograd._profiler_enabled():
            self._give_up("no profile: the script profiles itself")
            return
        watch.set_profiling(on=True)
        self._left = self._num
        self._own = True
        try:
            self._profiler = torch.autograd.profiler.profile(
                use_device="cuda" if _on_cuda() else None,
                use_kineto=True,  # without it torch asks events how long an operation took, and sees no kernel
                record_shapes=True,
            )
            self._wait_for_device()  # or what was submitted before would be in the time of the profiled steps
            with _silent_kineto():
                self._profiler.__enter__()
        finally:
            self._own = False
        self._since = self._ended = time.perf_counter()
        watch.clock.remember()

    def at_boundary(self) -> None:
        """A step is about to end: close after the last one. Summing still belongs to it."""
        if self._profiler is None or _is_capturing():  # to close it waits for the device
            return
        self._left -= 1
        self._waited_s += self._watch.clock.so_far("data_wait")
        seconds = time.perf_counter() - self._since
        num = self._num - self._left
        if self._left and seconds < num * LONG_STEP_S:
            return
        self._close()
        if self._profiler is not None:
            seconds = self._ended - self._since
            device = self._watch.device
            events = self._profiler.kineto_results.events()
            self.is_kept = len(events) <= MOST_KEPT
            self._kept = self._profiler if self.is_kept else None
            sums = partial(
                summed,
                events,
                num,
                device_index=device.device.index if device is not None else None,
                between=_in_wall_time(self._watch.clock.remembered()),
                updates_by_hand=NO_OPTIMIZER in self._watch.notes,
            )
            self._sum = lambda: replace(sums(), step_s=seconds / num, wait_s=self._waited_s / num)
            self._profiler = None
            # A script that is examined may be killed; a block is seen to end, and after the training summing delays nothing.
            if self._watch.most_cost is None or not self.is_kept:
                self._sum_up()
            # So long that a busy machine takes the CPU away meanwhile, which is no cost of the probe's.
            passed_s = time.perf_counter() - self._ended
            self._watch.waited(max(passed_s - (time.thread_time() - self._ended_cpu_s), 0.0))
        self.over = True

    def finish(self) -> None:
        """The watch ends. A profiler that is still at work would crash the interpreter's ending."""
        if self._profiler is not None and self._watch.here():
            self._close()
            self._profiler = None
        self.over = True
        try:
            self._sum_up()
        finally:
            self._kept = None

    def _sum_up(self) -> None:
        sums, self._sum = self._sum, None
        if sums is not None:
            self.seen = sums()

    def _is_time(self) -> bool:
        step = self._watch.step
        if self._after_counted is not None:
            return self._watch.counted_steps >= self._after_counted
        return step >= FIRST_STEP or (
            step >= SOONEST and time.monotonic() - self._began_at > SLOW_AFTER_S
        )

    def _captures(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._captured = True
        return original(*args, **kwargs)

    def _crashes_on_graphs(self) -> bool:
        """What `torch.profiler.profile` works around by environment variables that the script would see.

        With CUDA before 12.6, or where torch was built not to allow it, a profiler that starts again
        after a graph was captured crashes the process.
        """
        # As it asks; where inductor was never loaded nobody can have set it.
        config = sys.modules.get("torch._inductor.config")
        captures = self._captured or (config is not None and config.triton.cudagraphs)
        if not _on_cuda() or not captures:
            return False
        version = torch.version.cuda
        old = version is not None and TorchVersion(version) < "12.6"
        allowed = getattr(
            _utils_internal, "profiler_allow_cudagraph_cupti_lazy_reinit_cuda12", lambda: True
        )
        return old or not allowed()

    def _close(self) -> None:
        try:
            self._wait_for_device()  # a host that runs ahead has not had the time of its kernels yet
            self._ended, self._ended_cpu_s = time.perf_counter(), time.thread_time()
            self._profiler.__exit__(None, None, None)
        except RuntimeError as error:
            self._give_up(f"no profile: {error}")

    def _wait_for_device(self) -> None:
        if _on_cuda():
            is_in_work = self._watch.pause()  # the device is at the script's
            torch.cuda.synchronize()
            if is_in_work:
                self._watch.go_on()

    def _give_up(self, why: str) -> None:
        self.over, self._profiler, self._why_not = True, None, why

    def _making(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._own and self._watch.active and not self.over:
            self._watch.tried(self._script_profiles)
        return original(*args, **kwargs)

    def _script_profiles(self) -> None:
        """Two profilers at once are an error in the script: ours goes."""
        if self._profiler is not None:
            self._close()
        self._give_up("no profile: the script profiles itself")


def _in_wall_time(spans: Sequence[tuple[float, float]]) -> list[Span]:
    """Spans of `time.perf_counter`, in nanoseconds of the clock that kineto's events are on."""
    apart = time.time_ns() - time.perf_counter_ns()
    return [(int(begin * 1e9) + apart, int(end * 1e9) + apart) for begin, end in spans]


def _on_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _is_capturing() -> bool:
    return _on_cuda() and torch.cuda.is_current_stream_capturing()


@contextmanager
def _silent_kineto() -> Iterator[None]:
    """Its library reads its log level once, when it is first used; its lines would be on the script's stderr.

    So they are missing there, too, when the script begins to profile after this.
    """
    before = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_LOG_LEVEL, None)
        else:
            os.environ[_LOG_LEVEL] = before
