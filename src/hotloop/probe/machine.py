"""What this process may use of the machine, and what it does use: CPUs and memory. Standard library alone."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from hotloop.hardware.limits import cpu_quota


def usable_cpus() -> float:
    """CPUs this process may use: its affinity, or the quota of its control group where that is less."""
    return cpu_quota(len(_affinity()) or None)


def cpu_seconds() -> float:
    """CPU time of this process and its children so far, those that still run included (Linux)."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    for pid in children_of("self"):
        try:
            # after the name, which may hold anything: state is field 3, times are 14 to 17
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(value) for value in fields[11:15]) / ticks
        except (OSError, ValueError, IndexError):
            continue
    return total


def seconds_since_start() -> float | None:
    """How long this process has been running; `None` where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        up = float(Path("/proc/uptime").read_text().split()[0])
        return max(up - int(fields[19]) / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, ValueError, IndexError):
        return None


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
    if not hasattr(os, "sched_getaffinity"):
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
    system = platform.system()
    if system == "Linux":
        try:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        except (OSError, ValueError):
            pass
        return None
    if system == "Darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None


def tree_bytes() -> int | None:
    """Memory of this process and all below it now, in bytes; a page that n of them share is counted once.

    The sum of their proportional set sizes (Linux); `None` where the system does not tell. To read one
    takes about 10 ms per GB, in which that process cannot map memory.
    """
    waiting, found = ["self"], []
    while waiting:
        process = waiting.pop()
        found.append(_proportional_bytes(process))
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


def _proportional_bytes(process: str) -> int | None:
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
