"""A thread that looks at process and machine once a second and writes `telemetry.jsonl`.

It shares the interpreter with training, so what it costs is counted in the thread's own CPU time and
written into every line. It can end early (a full disk); it never ends the training.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from hotloop.core.files import storage_error
from hotloop.core.telemetry import TELEMETRY_FILE, TelemetrySample
from hotloop.hardware.limits import memory_limit_bytes, memory_used_bytes
from hotloop.hardware.nvml import Gpus

EVERY_S = 1.0

Newest = Callable[[], TelemetrySample | None]
"""The last sample taken; `None` before the first."""


class Sampler:
    """Reads one `TelemetrySample` at a time; rates are since the reading before."""

    def __init__(self, *, process: bool = True, below: int | None = None) -> None:
        """`process=False` leaves out this process: it only watches.

        below: the process meant is this one with all that it started, instead of ours.
        """
        self._watched = _Processes(below) if process else None
        self._gpus = Gpus()
        self._limit = memory_limit_bytes()
        self._before: tuple[float, float | None, Any, Any] | None = None

    @property
    def why_no_gpus(self) -> str | None:
        return self._gpus.why_none

    def sample(self) -> TelemetrySample:
        """Never fails: what the system does not tell is `None`."""
        now = time.monotonic()
        used = rss = None
        if self._watched is not None:
            used, rss = _read(self._watched.cpu_s), _read(self._watched.resident_bytes)
        cpu, disk = _read(psutil.cpu_times), _read(psutil.disk_io_counters)
        memory = _read(psutil.virtual_memory)
        before, self._before = self._before, (now, used, cpu, disk)
        then, used_then, cpu_then, disk_then = before or (now, None, None, None)
        wall = now - then
        busy, iowait, steal = _shares(cpu_then, cpu)

        def rate(old: float | None, new: float | None) -> float | None:
            return None if old is None or new is None or wall <= 0 else round((new - old) / wall, 3)

        return TelemetrySample(
            sampled_at=round(time.time(), 3),
            process_cpus=rate(used_then, used),
            process_bytes=rss,
            cpu_fraction=busy,
            iowait_fraction=iowait,
            steal_fraction=steal,
            memory_bytes=None if memory is None else memory.total - memory.available,
            memory_total_bytes=None if memory is None else memory.total,
            group_bytes=memory_used_bytes(),
            memory_limit_bytes=self._limit,
            disk_read_bytes_per_s=rate(_field(disk_then, "read_bytes"), _field(disk, "read_bytes")),
            disk_write_bytes_per_s=rate(
                _field(disk_then, "write_bytes"), _field(disk, "write_bytes")
            ),
            gpus=self._gpus.sample(),
        )

    def close(self) -> None:
        self._gpus.close()


class _Processes:
    """This process alone; or the one `below` with all that it started, as they come and go."""

    def __init__(self, below: int | None) -> None:
        self._root = psutil.Process(below)
        self._is_tree = below is not None
        self._seen: dict[psutil.Process, float] = {}
        self._spent_s = 0.0

    def cpu_s(self) -> float:
        """CPU seconds so far; what an ended process did after its last reading is missing."""
        seen = {}
        started = self._root.children(recursive=True) if self._is_tree else []
        for process in (self._root, *started):
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            seen[process] = float(times.user + times.system)
            self._spent_s += max(seen[process] - self._seen.get(process, 0.0), 0.0)
        self._seen = seen
        return self._spent_s

    def resident_bytes(self) -> int:
        """Sum of their resident sets: pages that they share count in each."""
        total = 0
        for process in self._seen:
            try:
                total += int(process.memory_info().rss)
            except psutil.Error:
                continue
        return total


class OtherPrograms:
    """What else keeps the CPUs busy while a process runs, with all that it starts: to be looked at now and then."""

    def __init__(self, pid: int) -> None:
        self.share: float | None = None
        """Of all CPU time of the machine from the first look to the last; `None` before two of them."""
        self._pid = pid
        self._before: tuple[Any, float] | None = None

    def look(self) -> None:
        """Never fails: an ended process leaves `share` as it was."""
        cpu, own_s = _read(psutil.cpu_times), _read(self._own_s)
        if cpu is None or own_s is None:
            return
        if self._before is None:
            self._before = (cpu, own_s)
            return
        cpu_then, own_then_s = self._before
        busy, *_ = _shares(cpu_then, cpu)
        whole_s = sum(_spent(cpu_then, cpu).values())
        if busy is not None:
            self.share = round(max(busy - (own_s - own_then_s) / whole_s, 0.0), 4)

    def _own_s(self) -> float:
        """CPU seconds of it and of what it started, ended processes included where they were waited for."""
        root = psutil.Process(self._pid)
        total = float(sum(root.cpu_times()[:4]))
        for process in root.children(recursive=True):
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.Error:
                continue
        return total


def _read(what: Callable[[], Any]) -> Any:
    try:
        return what()
    except (OSError, psutil.Error, RuntimeError, NotImplementedError):
        return None


def _field(counters: Any, name: str) -> float | None:
    return None if counters is None else getattr(counters, name, None)


def _shares(before: Any, now: Any) -> tuple[float | None, float | None, float | None]:
    """Busy, iowait and steal as shares of all CPU time between two readings."""
    if before is None or now is None:
        return None, None, None
    spent = _spent(before, now)
    whole = sum(spent.values())
    if whole <= 0:
        return None, None, None
    idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)

    def share(name: str) -> float | None:
        return round(spent[name] / whole, 4) if name in spent else None

    return round(1 - idle / whole, 4), share("iowait"), share("steal")


def _spent(before: Any, now: Any) -> dict[str, float]:
    """CPU seconds of all CPUs between two readings, by what they were spent on."""
    # Guests' time is already in user and nice.
    names = [name for name in now._fields if not name.startswith("guest")]
    return {name: max(getattr(now, name) - getattr(before, name), 0.0) for name in names}


@contextmanager
def telemetry(
    directory: Path,
    *,
    wanted: bool = True,
    below: int | None = None,
    every_s: float = EVERY_S,
    warn: Callable[[str], None] = lambda message: None,
) -> Iterator[Newest]:
    """Append a sample a second to `telemetry.jsonl` in `directory` until the block ends.

    Gives a function that returns the newest sample. Does nothing unless `wanted`. `below`: of this
    process with all that it started, instead of ours. `warn` is told at the end when sampling had to
    stop early.
    """
    if not wanted:
        yield lambda: None
        return
    recorder = _Recorder(directory / TELEMETRY_FILE, every_s, below)
    recorder.start()
    try:
        yield lambda: recorder.newest
    finally:
        recorder.stop()
        if recorder.problem is not None:
            warn(f"telemetry ended early: {recorder.problem}")


class _Recorder(threading.Thread):
    def __init__(self, path: Path, every_s: float, below: int | None) -> None:
        super().__init__(name="hotloop-telemetry", daemon=True)
        self.problem: str | None = None
        self.newest: TelemetrySample | None = None
        self._path = path
        self._every_s = every_s
        self._below = below
        self._ended = threading.Event()

    def stop(self) -> None:
        self._ended.set()
        self.join(timeout=5)

    def run(self) -> None:
        try:
            sampler = Sampler(below=self._below)
        except psutil.Error:  # it has ended already
            return
        began = time.monotonic()
        try:
            with self._path.open("a+b", buffering=0) as file:
                _end_torn_line(file)
                while True:
                    sample = sampler.sample()
                    # Of this thread alone: training's own time is not in it.
                    spent = time.thread_time()
                    wall = time.monotonic() - began
                    share = round(spent / wall, 5) if wall >= EVERY_S else None
                    self.newest = replace(sample, sampler_s=round(spent, 6), sampler_fraction=share)
                    file.write(self.newest.to_json().encode() + b"\n")
                    if self._ended.wait(self._every_s):
                        return
        except OSError as error:
            self.problem = storage_error(error, self._path, "write telemetry").what
        finally:
            sampler.close()


def _end_torn_line(file: Any) -> None:
    """A process killed while writing left half a line: what follows starts on its own."""
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(size - 1)
        if file.read(1) != b"\n":
            file.write(b"\n")
