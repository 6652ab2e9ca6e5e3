"""The sidecar files of one rank: the records, and the census put together from what each part saw.

They are written by a thread: what was flushed stays, however the script ends. Files are opened for each write: a
script that becomes a daemon closes every descriptor it finds, and one that is used again would be somebody else's file.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shutil
import time
from pathlib import Path
from threading import Lock

import torch

from hotloop.core.census import Census
from hotloop.probe.attach.batch_times import fetch_file, read_fetches
from hotloop.probe.attach.boundary import Boundary
from hotloop.probe.attach.debug_switches import DebugSwitches
from hotloop.probe.attach.evaluation_watch import EvaluationWatch
from hotloop.probe.attach.garbage_watch import GarbageWatch
from hotloop.probe.attach.imports_seen import ImportsSeen
from hotloop.probe.attach.loader_watch import LoaderWatch
from hotloop.probe.attach.model import ModelSeen, Padding
from hotloop.probe.attach.operators import Seen
from hotloop.probe.attach.passes import Cost
from hotloop.probe.attach.sampler import Sampler
from hotloop.probe.attach.step_calls import Step
from hotloop.probe.attach.step_profiler import StepProfiler
from hotloop.probe.attach.watch import Watch, num_ranks
from hotloop.probe.background import Background
from hotloop.probe.compile_watch import CompileWatch
from hotloop.probe.foreign_process import replace_json
from hotloop.probe.machine import Busy, host_peak_bytes, num_background_saves, usable_cpus
from hotloop.probe.memory_watch import MemoryWatch

FIRST_AFTER_S = 0.1
STEPS_EVERY_S = 1.0
CENSUS_EVERY_S = 10.0
LOOK_EVERY_S = 3.0
RUN_FILE = "doctor.json"
"""What the doctor says of the run (`core.command_run`), once it has ended with what it left running."""


class Parts:
    """Everything that watches one process."""

    def __init__(
        self, directory: Path, *, profile_after: int | None, most_cost: float | None = None
    ) -> None:
        """profile_after: steps that have to be counted before some are profiled; `None`: a usual number. most_cost: as `Watch`."""
        self.watch = Watch(directory)
        self.watch.most_cost = most_cost
        self.boundary = Boundary(self.watch)
        self.evaluations = EvaluationWatch(self.watch)
        self.padding = Padding()
        self.model = ModelSeen(self.watch.sites, self.padding)
        self.loaders = LoaderWatch(self.watch, self.evaluations, self.padding)
        self.sampler = Sampler(self.watch)
        self.garbage = GarbageWatch(self.watch)
        self.profiler = StepProfiler(self.watch, self.boundary.updates, after_counted=profile_after)
        self.switches = DebugSwitches(self.watch)
        self.compiling = CompileWatch(self.watch)
        self.busy = Busy()
        self.cost = Cost()
        self.imports = ImportsSeen()
        self.memory = MemoryWatch(directory)
        if most_cost is not None:  # of a block, whose end is seen: only a kill leaves an older file
            self.memory.written_every *= 5  # 10 s

    def clear(self) -> None:
        """What was taken for steps was none."""
        self.sampler.clear()
        self.garbage.clear()
        self.loaders.clear()
        self.busy.clear()
        self.switches.clear()
        self.watch.calls.clear()


class Writer:
    """Appends records, replaces the census, and says at the end that it is the end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._watch = parts.watch
        self._lock = Lock()
        self.background = Background("hotloop-writer", self._turn, self._watch.note_now)
        self._begun = False
        self._wait_s = FIRST_AFTER_S  # a script may end within a second, and not by itself
        self._fetched_to = 0
        self._census_at = self._looked_at = 0.0
        self._census_every_s = 4 * FIRST_AFTER_S
        if self._watch.most_cost is not None:  # a block is seen to end, and has one then
            self._census_at, self._census_every_s = time.monotonic(), CENSUS_EVERY_S
        self._done = False

    def finish(self, *, stopped: bool = False) -> None:
        """Write what is left; does nothing in a process that made no step, or the second time."""
        watch = self._watch
        if watch.other is not None:
            watch.other.write()
        if not self._done and not watch.claimed and watch.active:
            self._write_idle()
        if self._done or not watch.begun:
            return
        self._done = True
        self.background.stop()
        watch.tried(self._parts.profiler.finish)
        self._parts.sampler.stop()
        with self._lock:
            if not self._write_all(finished=True, stopped=stopped):
                return
        if self._fetched_to:
            fetch_file(watch.directory, os.getpid()).unlink(missing_ok=True)
        watch.tried(self._tidy)

    def _tidy(self) -> None:
        """A process that continued after the doctor removes what only running processes need."""
        directory = self._watch.directory
        try:
            left = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))["left_running"]
        except (OSError, ValueError, KeyError):
            return  # nobody examines it
        others = [pid for pid in left if pid != os.getpid() and Path(f"/proc/{pid}").exists()]
        if left and not others:
            shutil.rmtree(directory / "path", ignore_errors=True)
            for path in directory.glob("claim-*"):
                path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Write what was seen so far, of a process that may end now."""
        if self._done or not self._begun or not self._lock.acquire(timeout=STEPS_EVERY_S):
            return
        try:
            self._write_all(finished=False)
        finally:
            self._lock.release()

    def forked(self) -> None:
        """In a child: the parent's files are its own, and a lock may be held by nobody."""
        self._done = True
        self._lock = Lock()
        self.background.forked()

    def _turn(self) -> float | None:
        """The first time only that there is something to come."""
        with self._lock:
            if self._done or not self._watch.active or not self._is_ours():
                return None
            if not self._begun:
                self._begun = True
                self._write_clock(finished=False)
                return self._wait_s
            if self._append() and time.monotonic() - self._census_at > self._census_every_s:
                self._write_census()
                self._census_every_s = min(3 * self._census_every_s, CENSUS_EVERY_S)
        self._wait_s = min(2 * self._wait_s, STEPS_EVERY_S)
        return self._wait_s

    def _write_all(self, *, finished: bool, stopped: bool = False) -> bool:
        """Write the steps that have closed, and what was seen up to now; whether these files are this process's."""
        if not self._is_ours():
            return False
        self._watch.tried(lambda: self._watch.release(all_of_them=True))
        self._append()
        self._write_census()
        self._write_clock(finished=finished, stopped=stopped)
        return True

    def _is_ours(self) -> bool:
        """Whether these files are to be this process's; never again where another one trains."""
        if not self._watch.is_ours():
            self._watch.active, self._done = False, True
        return self._watch.active

    def _append(self) -> bool:
        """Append the records of the steps that closed; whether there were any."""
        watch, sampler = self._watch, self._parts.sampler
        path = watch.directory / f"steps-{watch.rank}.jsonl"
        steps: list[Step] = []
        while watch.closed:
            step = watch.closed.popleft()
            if step is None:
                steps.clear()
                path.unlink(missing_ok=True)
                self._parts.clear()
            else:
                steps.append(step)
        lines: list[str] = []
        for step, extra_reads in zip(steps, self._parts.cost.extra_reads(steps)):
            lines.append(step.record(extra_reads).to_json() + "\n")
            sampler.close_step(step.step, counted=step.counted)
            if step.counted:
                watch.calls.count(step.calls)
        found, self._fetched_to = read_fetches(
            fetch_file(watch.directory, os.getpid()), self._fetched_to
        )
        for seed, fetched in found:
            self._parts.loaders.fetched_elsewhere(seed, fetched)
        if not lines:
            return False
        watch.cost_times = self._parts.cost.all_s / self._parts.cost.own_s
        watch.beside_share = self._parts.cost.beside_share
        if self._parts.busy.began and (
            self._done or time.monotonic() - self._looked_at > LOOK_EVERY_S
        ):
            self._parts.busy.look()  # reads a file for each thread
            self._looked_at = time.monotonic()
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))
        return True

    def _write_census(self) -> None:
        self._census_at = time.monotonic()
        replace_json(
            self._watch.directory / f"census-{self._watch.rank}.json",
            census_of(self._parts).to_mapping(),
        )

    def _write_clock(self, *, finished: bool, stopped: bool = False) -> None:
        device = self._watch.device
        on_cuda = self._parts.boundary.device.type == "cuda"
        named = {"device_name": None, "compute_capability": None}
        replace_json(
            self._watch.directory / f"clock-{self._watch.rank}.json",
            {
                "finished": finished,
                "stopped": stopped,
                "steps": self._watch.step,
                "boundary": self._parts.boundary.rule,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda if on_cuda else None,
                **(named if device is None else device.named()),
                "pid": os.getpid(),
                "notes": list(self._watch.notes),
            },
        )

    def _write_idle(self) -> None:
        """What a process did that used torch and made no step."""
        self._done = True
        boundary = self._parts.boundary
        if multiprocessing.parent_process() is not None and not boundary.backwards_seen:
            return  # a loader's worker
        idle = self._watch.directory / f"idle-{os.getpid()}.json"
        replace_json(idle, {"backwards": boundary.backwards_seen})


def census_of(parts: Parts) -> Census:
    """What was seen so far. From the writer's thread, or at the end."""
    watch, boundary, profiler = parts.watch, parts.boundary, parts.profiler
    calls, sites = watch.calls, watch.sites
    seen = profiler.seen or Seen()
    on_device = boundary.device.type != "cpu"
    counted = watch.counted_steps
    looked = ["loaders", "saves", "logs", "evaluations", "lines"]
    looked += ["copies", "syncs"] if on_device else []
    looked += ["operators"] if profiler.seen is not None else []
    notes = [*watch.notes, *([] if profiler.seen is not None else [profiler.why_not])]
    return Census(
        device=str(boundary.device),
        num_threads=torch.get_num_threads(),
        matmul_dtypes=seen.matmul_dtypes,
        parameter_dtypes=boundary.dtypes,
        attention=seen.attention,
        optimizer=boundary.described,
        optimizer_site=sites.name(boundary.constructed),
        num_ranks=num_ranks(),
        host_peak_bytes=host_peak_bytes(),
        num_background_saves=num_background_saves(),
        clock_read_s=parts.cost.read_s,
        cpus=usable_cpus(),
        cpu_busy=parts.busy.cpus(),
        microbatches=watch.counted_backwards / counted if counted else None,
        counted_steps=counted,
        steps_made=None if watch.most_cost is None else watch.step,
        profiled_step_s=seen.step_s,
        profiled_wait_s=seen.wait_s,
        profiled_busy_s=seen.busy_s,
        profiled_communication_s=seen.communication_s,
        profiled_between_s=seen.computing_between_s,
        profile_kept=profiler.is_kept,
        **parts.compiling.used(seen.runs_compiled),
        **parts.model.used(),
        **(watch.device.used() if watch.device is not None else {}),
        cudnn_benchmark=torch.backends.cudnn.benchmark if on_device else None,
        debug_switches=parts.switches.used(),
        loaders=parts.loaders.uses(),
        copies=calls.uses("copies", sites),
        syncs=calls.uses("syncs", sites),
        saves=calls.uses("saves", sites),
        logs=calls.uses("logs", sites),
        evaluations=calls.uses("evaluations", sites),
        lines=parts.sampler.lines(),
        num_samples=parts.sampler.counted,
        operators=seen.operators,
        collections=parts.garbage.use(),
        padding=parts.padding.use(),
        seen=tuple(looked),
        notes=tuple(notes),
    )
