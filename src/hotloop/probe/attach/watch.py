"""One process under watch: its clock, the step that is running, and what is known of each closed one.

Everything here runs on the thread that steps, and never raises: what fails inside is noted, and the
script continues unwatched.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import CodeType
from typing import Any

import torch
from torch.utils.data import get_worker_info

from hotloop.probe.attach.device_clock import MAX_WAITING, DeviceClock, DeviceStep
from hotloop.probe.attach.sites import Sites
from hotloop.probe.attach.step_calls import CallCounts, Step
from hotloop.probe.foreign_process import write_note
from hotloop.probe.phases import PhaseClock
from hotloop.probe.step_rule import RankLock, UnrankedTraining

WARMUP_STEPS = 10
WARMUP_S = 30.0
"""Steps that take seconds are warm sooner: after this long, and `SHORTEST_WARMUP` of them."""
SHORTEST_WARMUP = 3
NOT_UNDER_WAY = frozenset({"warmup", "compile", "resumed", "profiled"})
"""Tags of steps that say nothing about a training that is under way."""
RESTS = "rests"
"""On the clock in place of a phase while steps are left out: calls of modules only pass through."""
FEWEST, MOST_REST = 20, 50.0
"""Steps that are looked at before any is left out, and those that are left out after each one, at most: a fifth as many
as were looked at by then, too, since few do not tell what looking costs."""
SPREAD = 200
"""Steps in which what the start and the profile cost is made up for by leaving out others."""
LEAST_ROOM = 0.25
"""Part of what may be spent that looking at steps may take, whatever else was spent."""


class Watch:
    """What the hooks share. `active` is cleared for good in a process that is not, or no longer, watched."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.active = True
        self.claimed = False
        self.begun = False
        """The threads run."""
        self.rank = "0"
        self.is_child = multiprocessing.parent_process() is not None
        """Started by a process that uses torch: there a forward pass alone is no sign of training."""
        self.updates = False
        """Weights are known to be updated by what is taken for steps."""
        self.other: UnrankedTraining | None = None
        """Set in a process that trains beside the one that is watched."""
        self._rank_lock: RankLock | None = None
        self.thread = get_ident()
        self.clock = PhaseClock()
        self.sites = Sites()
        self.calls = CallCounts()
        self.step = 0
        self.counted_steps = 0
        self.counted_s = 0.0
        self.now = Step(samples=None)
        """The step that is running."""
        self.counting = False
        """Whether the step that is running is neither warm-up nor profiled."""
        self.profiling = False
        self.evaluates = False
        """Passes that evaluate have been seen, and nothing of training since."""
        self.eval_batch = False
        """Gradients are on, and the last batch came from a loader that evaluates."""
        self.waits = False
        """For another thread or process, perhaps for data."""
        self.span = 0
        """Number of such a wait, or of the time after a pass that evaluates: what it belongs to shows only at its end."""
        self.outside: deque[int] = deque(maxlen=1000)
        """Those that turned out to be outside of every phase: no data came, no other such pass."""
        self.trains: set[CodeType] = set()
        """The user's functions in which a step has ended: a generator among them feeds nothing."""
        self.closed: deque[Step | None] = deque()
        """For the writer; `None`: the steps so far were none, throw them away."""
        self.counted_backwards = 0
        self.savers: set[CodeType] = set()
        """The user's functions that saved something."""
        self.at_boundary: Callable[[], None] = lambda: None
        """Called at the end of each step, before it is closed."""
        self.resume: Callable[[], None] = lambda: None
        """Has the threads go on that ended for a fork; called where one may have been made."""
        self.after_boundary: Callable[[], None] = lambda: None
        self.saw: Callable[[Step], None] = lambda step: None
        """Called with each step whose times are known."""
        self.device: DeviceClock | None = None
        """Set once training is seen to happen on one that has a clock of its own."""
        self._waiting: deque[tuple[Step, DeviceStep | None]] = deque()
        self.notes: list[str] = []
        self._first_end: float | None = None
        self._missing: set[str] = set()
        self._at_work = False
        self._began = 0.0
        self.own: dict[str, float] = {}
        """Seconds of the probe's own work in this step, by phase, without clock reads. By the wall clock: asking for CPU time is
        a system call, and that is where a busy machine takes the CPU from a thread whose turn is over."""
        self.most_cost: float | None = None
        """Share of the time to stay below; `None`: every step is looked at, whatever it costs."""
        self.cost_times = 1.0
        """All that the probe costs on this thread over its work there."""
        self.beside_share = 0.0
        """Share of the time that the probe's other threads take, however many steps are left out."""
        self._worked_s = self._left_out_s = 0.0
        self._once_s = 0.0
        """Work in the steps that do not count: what the start and the profile cost."""
        self._num_left_out = 0
        self.resting = 0
        """Steps still left out before the next one that is looked at."""
        self._drawn = random.Random(0).random  # the script's own generator is not touched

    def enter(self, phase: str) -> int:
        """Open a phase; -1 where this call is not timed: another thread, a child, not watched."""
        if self.resting or not self.active or get_ident() != self.thread:
            return -1
        innermost = self.clock.opened[-1]
        depth = self.clock.enter(phase)
        if self._at_work:
            self._book(self.clock.last, innermost)
        if self.device is not None:
            self.device.edge(depth + 1, is_told=self._at_work)
        return depth

    def leave(self, depth: int) -> None:
        """Close what `enter` opened, and what was left open inside."""
        if depth >= 0 and self.active:
            if self.device is not None:
                self.device.edge(depth, is_told=self._at_work)
            innermost = self.clock.opened[-1]
            self.clock.leave(depth)
            if self._at_work:
                self._book(self.clock.last, innermost)

    def timed(
        self,
        phase: str,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        done: Callable[..., None] | None = None,
        *about: Any,
    ) -> Any:
        """Make the call in `phase`. done: told of its seconds and `about`, however it ended; not where it is not timed."""
        depth = self.enter(phase)
        if depth < 0:
            return original(*args, **kwargs)
        start = self.clock.last
        try:
            return original(*args, **kwargs)
        finally:
            self.leave(depth)
            if done is not None:
                self.tried(done, self.clock.last - start, *about)

    def here(self) -> bool:
        """Whether this thread is the one that steps, in a process under watch."""
        return self.active and get_ident() == self.thread

    def tag(self, name: str) -> None:
        """Mark the step that is running."""
        if name not in self.now.tags:
            self.now.tags.append(name)

    def guarded(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Do it; the script must go on whatever happens in here, without the probe if need be."""
        if self._at_work:
            return action(*arguments)  # the one around it looks out
        self._at_work, self._began = True, time.perf_counter()
        try:
            return action(*arguments)
        except Exception as error:  # noqa: BLE001
            self.failed(error, getattr(action, "__qualname__", "?"))
            return None
        finally:
            self._worked()

    def tried(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """As `guarded`, for what the rest can do without: noted the first time, the probe continues."""
        outermost, self._at_work = not self._at_work, True
        if outermost:
            self._began = time.perf_counter()
        try:
            return action(*arguments)
        except Exception as error:  # noqa: BLE001
            name = getattr(action, "__qualname__", "?")
            if name not in self._missing:
                self._missing.add(name)
                self.note_now(f"not seen: {name}: {type(error).__name__}: {error}")
            return None
        finally:
            if outermost:
                self._worked()

    def _worked(self) -> None:
        self._book(time.perf_counter(), self.clock.opened[-1])
        self._at_work = False

    def waited(self, seconds: float) -> None:
        """The work that is being done has waited for the CPU, with no edge of a phase since."""
        self._began += seconds

    def pause(self) -> bool:
        """What follows is no work of the probe's, until `go_on`; whether it was at work."""
        was_at_work = self._at_work
        if was_at_work:
            self._worked()
        return was_at_work

    def go_on(self) -> None:
        """After `pause`."""
        self._at_work, self._began = True, time.perf_counter()

    def _book(self, now: float, phase: str) -> None:
        """Work up to now is the probe's, and in the time of this phase; told at each edge, also one that it makes itself."""
        self.own[phase] = self.own.get(phase, 0.0) + now - self._began
        self._began = now

    def failed(self, error: BaseException, doing: str) -> None:
        """Note it and let go of the process."""
        self.active = False
        self.note_now(f"the probe failed in {doing}: {type(error).__name__}: {error}")

    def note_now(self, text: str) -> None:
        """A line in the sidecar directory, at once."""
        write_note(self.directory, text)

    def end_step(self) -> None:
        """The step that is running ends now, whatever is open."""
        if not self.active or not (self.here() if self.claimed else self._claim()):
            return
        if self.resting:
            self.left_out()
            return
        self.at_boundary()
        step, device = self.now, self.device
        step.wall_s, step.host, step.reads = self.clock.cut_step()
        if self._at_work:
            self._book(self.clock.last, self.clock.opened[-1])  # the rest is the next step's
        step.own_by_phase, self.own = self.own, {}
        step.own_s += sum(step.own_by_phase.values())
        if device is None:
            step.take_off_own()
        else:
            step.own_s += device.own_s  # it stays in its phases
            device.own_s = 0.0
        if self.profiling or self.step < WARMUP_STEPS:
            self._tag_unlike()
        step.step, step.calls = self.step, self.calls.take()
        step.counted = NOT_UNDER_WAY.isdisjoint(step.tags)
        if step.counted:
            self.counted_steps += 1
            self.counted_s += step.wall_s
            # More is another program's: it took the CPU away in the midst of it.
            usual_s = self._worked_s / self.counted_steps
            self._worked_s += min(step.own_s, 4 * usual_s or step.own_s)
            self.counted_backwards += step.backwards
        elif self.step:
            self._once_s += step.own_s
        self.now = Step(samples=None if step.samples is None else 0)
        if device is None:
            self._hand_over(step)
        else:
            step.on_device = True
            self._waiting.append((step, device.cut()))
            self.release()
        if self.step < WARMUP_STEPS:
            self.trains |= {each.f_code for each in self.sites.own_frames(sys._getframe())}
        self.step += 1
        self.counting = not self.profiling and not self._warming_up()
        self.after_boundary()

    def rest(self, *, at_most: float = math.inf) -> None:
        """Leave out steps, where looking at each costs too much. How many is drawn: what comes every N steps must not
        always fall in the same ones. Never with something open."""
        if self.most_cost is None or self.counted_steps < FEWEST or not self.counting:
            return
        if len(self.clock.opened) > 1:
            return
        passed_s = self.counted_s + self._left_out_s
        once_s = self._once_s * min(self.step / SPREAD, 1.0)
        room_s = (self.most_cost - self.beside_share) * passed_s - once_s
        room_s = max(room_s, LEAST_ROOM * self.most_cost * passed_s)
        over = self.cost_times * self._worked_s / room_s
        # The second time for what was spent too much so far.
        mean = (1 + self._num_left_out / self.counted_steps) * over * max(over, 1.0) - 1
        mean = min(max(mean, 0.0), MOST_REST, self.counted_steps / 5)
        self.resting = int(min(2 * mean * self._drawn() + self._drawn(), max(at_most, 0)))
        if self.resting:
            self._num_left_out += self.resting
            self.clock.opened.append(RESTS)
            self.counting = False

    def left_out(self) -> None:
        """A step has ended that was not looked at."""
        self.step += 1
        self.now.left_out += 1
        self.now.passed += 4  # its hooks cost about as much
        self.resting -= 1
        if not self.resting:
            self.at_boundary()  # what was compiled meanwhile is no event of the next step
            self.now.tags.clear()
            self.now.left_out_s, _, _ = self.clock.cut_step()
            self._left_out_s += self.now.left_out_s
            self._book(self.clock.last, RESTS)
            del self.clock.opened[1:]
            if self.device is not None:
                self.device.cut()  # the step that begins has an event of its own
            self.counting = not self.profiling and not self._warming_up()

    def release(self, *, all_of_them: bool = False) -> None:
        """Hand the writer the steps whose events the device has passed; at the end also the others."""
        waiting, device = self._waiting, self.device
        # A query while a graph is captured would spoil it, and the training with it.
        asks = device is not None and bool(self.tried(device.is_free))
        while waiting:
            closed, events = waiting[0]
            if events is not None and device is not None:
                passed = self.tried(events.passed) if asks else False
                if passed:
                    closed.device = self.tried(events.seconds)
                    device.give_back(events)
                elif passed is False and not all_of_them and len(waiting) < MAX_WAITING:
                    return
            waiting.popleft()
            closed.take_off_own()
            self._hand_over(closed)

    def _hand_over(self, step: Step) -> None:
        self.closed.append(step)
        self.saw(step)

    def set_profiling(self, *, on: bool) -> None:
        """From this step on, or no longer, a profiler is at work."""
        self.profiling = on
        self.counting = not on and not self._warming_up()

    def restart(self, why: str, *, made: int = 0) -> None:
        """What was taken for steps was none: forget them, and go on with the step that is running.

        made: steps before that one. They keep their numbers, but no time: it was cut in the wrong places.
        """
        self._waiting.clear()
        self.closed.append(None)
        self.step = made
        self.counted_steps = self.counted_backwards = self._num_left_out = 0
        self.counted_s = self._worked_s = self._left_out_s = 0.0
        self._first_end = None
        self.calls.take()
        self.counting = False
        self.resting = min(self.resting, 1)
        self.notes.append(why)

    def forked(self) -> None:
        """In a child of fork: it may be the one that trains only if its parent had not begun to."""
        self.is_child = True
        if self.claimed:
            self.active = False
        self.thread = get_ident()
        self.clock.restart()

    def _tag_unlike(self) -> None:
        if self._warming_up():
            self.tag("warmup")
        if self.profiling:
            self.tag("profiled")
        if self._first_end is None:
            self._first_end = time.monotonic()

    def _warming_up(self) -> bool:
        if self.step >= WARMUP_STEPS:
            return False
        if self.step < SHORTEST_WARMUP or self._first_end is None:
            return True
        return time.monotonic() - self._first_end < WARMUP_S

    def _claim(self) -> bool:
        """One process per rank is watched: the first that makes a step, on the thread that makes it.

        What only looks like training gives way to a process that updates weights.
        """
        if get_worker_info() is not None:  # transforms are modules, too
            self.active = False
            return False
        if get_ident() != self.thread:
            self.thread = get_ident()
            self.clock.restart()
        self.rank = str(own_rank())
        self._rank_lock = RankLock(self.directory, self.rank)
        self.claimed = self._take(proven=self.updates)
        return self.claimed

    @property
    def looked_at(self) -> int:
        """Steps that ended and were not left out."""
        return self.step - self._num_left_out

    def saw_updates(self) -> None:
        """From here on it is known that this process trains."""
        self.updates = True
        if self._rank_lock is not None:
            self._take(proven=True)

    def _take(self, *, proven: bool) -> bool:
        assert self._rank_lock is not None
        self.active = self._rank_lock.acquire(proven=proven)
        if not self.active:
            self.other = UnrankedTraining(self.directory)
        return self.active

    def is_ours(self) -> bool:
        """Whether no other process was found to be the one that trains instead."""
        return self._rank_lock is not None and self._rank_lock.is_held()


def own_rank() -> int:
    """The number of this process among those that train together."""
    return _ranked("get_rank", "RANK", 0)


def num_ranks() -> int:
    """Processes that train together."""
    return _ranked("get_world_size", "WORLD_SIZE", 1)


def _ranked(asked: str, variable: str, default: int) -> int:
    """As the process group says, else as the launcher does."""
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(getattr(distributed, asked)())
    given = os.environ.get(variable, "")
    return int(given) if given.isascii() and given.isdigit() else default
