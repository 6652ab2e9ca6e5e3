"""What this process may use of the machine, and what it does use: CPUs and memory. Standard library alone."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from hotloop.hardware.limits import cpu_quota, kernel_number


def usable_cpus() -> float:
    """CPUs this process may use: its affinity, or the quota of its control group where that is less."""
    return cpu_quota(len(_affinity()) or None)


def cpu_seconds() -> float:
    """CPU time of this process and its children so far, those that still run included (Linux)."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for pid in children_of("self"):
        try:
            total += sum(_stat(pid)[10:14]) / os.sysconf("SC_CLK_TCK")  # fields 14 to 17
        except (OSError, ValueError):
            continue
    return total


def seconds_since_start() -> float | None:
    """How long this process has been running; `None` where the system does not tell."""
    try:
        up = float(Path("/proc/uptime").read_text().split()[0])
        return max(up - _stat("self")[18] / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, ValueError):
        return None


def _stat(process: str) -> list[int]:
    """The numbers of its `stat` file, from field 4 on: after the name, which may hold anything, and the state."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return [int(field) for field in fields[1:]]


class Busy:
    """CPUs kept busy between the first and the last time of asking."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None

    @property
    def began(self) -> bool:
        return self._first is not None

    def look(self) -> None:
        now = (time.monotonic(), cpu_seconds())
        if self._first is None:
            self._first = now
        self._last = now

    def cpus(self) -> float | None:
        if self._first is None or self._last is None or self._last[0] - self._first[0] < 0.5:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


def _affinity() -> set[int]:
    """CPUs of all threads together: OpenMP may have pinned each of them to one of its own."""
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return set()
    found = set(os.sched_getaffinity(0))
    for path in Path("/proc/self/task").glob("[0-9]*"):
        try:
            found |= os.sched_getaffinity(int(path.name))
        except OSError:  # it has ended
            continue
    return found


def host_peak_bytes() -> int | None:
    """Highest resident set of this process, in bytes; `None` where the system does not tell.

    On Linux from VmHWM: `ru_maxrss` survives exec, so that a small child of a large parent would
    report its parent's memory as its own.
    """
    if platform.system() == "Darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kernel_number(Path("/proc/self/status"), "VmHWM:", unit=1 << 10)


def num_background_saves() -> int:
    """Files that went to the thread of `hotloop.checkpoint`, where this process has that."""
    saves = _background_saves()
    return saves.num_saved if saves is not None else 0


def finish_background_saves() -> None:
    """Wait until all of them are written: the time belongs to the steps that saved."""
    if (saves := _background_saves()) is not None:
        saves.wait(lambda save: True)


def _background_saves() -> Any:
    return getattr(sys.modules.get("hotloop.checkpoint.background_files"), "SAVES", None)


def tree_bytes() -> int | None:
    """Memory of this process and all below it now, in bytes; a page that n of them share is counted once.

    The sum of their proportional set sizes (Linux); `None` where the system does not tell. To read one
    takes about 10 ms per GB, in which that process cannot map memory.
    """
    waiting, found = ["self"], []
    while waiting:
        process = waiting.pop()
        found.append(_mapped_bytes(process, "Pss:"))
        waiting += children_of(process)
    return None if found[0] is None else sum(each for each in found if each is not None)


def children_of(process: str) -> list[str]:
    """Numbers of the processes that `process` started and that still run."""
    found: list[str] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += path.read_text().split()
        except OSError:
            continue
    return found


def private_bytes(process: str) -> int:
    """Memory that a process has for itself: a forked one shares most of its resident set with its parent."""
    return _mapped_bytes(process, "Private_Clean:", "Private_Dirty:") or 0


def _mapped_bytes(process: str, *names: str) -> int | None:
    return kernel_number(Path(f"/proc/{process}/smaps_rollup"), *names, unit=1 << 10)
