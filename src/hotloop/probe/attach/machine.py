"""What this process may use of the machine, and what it does use. Standard library alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hotloop.probe.memory import children_of


def usable_cpus() -> float:
    """CPUs this process may use: its affinity, or the quota of its control group where that is less."""
    cpus = float(len(_affinity()) or os.cpu_count() or 1)
    for directory in control_groups("cpu"):
        words = _words(directory / "cpu.max")  # version 2: "max 100000" or "200000 100000"
        if len(words) == 2 and words[0] != "max":
            cpus = min(cpus, int(words[0]) / int(words[1]))
        quota = _words(directory / "cpu.cfs_quota_us")
        period = _words(directory / "cpu.cfs_period_us")
        if quota and period and int(quota[0]) > 0:
            cpus = min(cpus, int(quota[0]) / int(period[0]))
    return cpus


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
    """Of all threads together: OpenMP may have pinned each of them to a CPU of its own."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    found = set(os.sched_getaffinity(0))
    for path in Path("/proc/self/task").glob("[0-9]*"):
        try:
            found |= os.sched_getaffinity(int(path.name))
        except OSError:  # it has ended
            continue
    return found


def control_groups(controller: str) -> list[Path]:
    """The control groups for `controller` that this process is in, and those above, where they are mounted."""
    root = Path("/sys/fs/cgroup")
    found = []
    for line in _lines(Path("/proc/self/cgroup")):
        parts = line.split(":", 2)
        if len(parts) != 3 or (parts[1] and controller not in parts[1].split(",")):
            continue
        base = root / parts[1] if parts[1] else root
        path = base / parts[2].lstrip("/")
        found += [path, *[up for up in path.parents if up == base or base in up.parents]]
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    lines = _lines(path)
    return lines[0].split() if lines else []
