"""What this process may really use: CPUs and memory, as the kernel's control groups allow, and what its machine can do.

Foreign processes import this: standard library alone, but for what is imported in functions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine can do, as far as choosing among optimizations needs it."""

    device_type: str
    """`cpu` or `cuda`."""
    fast_dtypes: tuple[str, ...]
    """Dtypes that the hardware multiplies, fastest first."""
    why_no_compile: str | None
    """What `torch.compile` misses here; `None` where it can run."""
    num_threads: int
    why_no_kept_memory: str | None = None
    """Why the allocator of this process cannot be told to keep what is freed; `None` where it can."""
    memory_bytes: int | None = None
    """Memory of the device that a process may use; `None` where nobody asked."""


_CGROUP = Path("/sys/fs/cgroup")


def num_cpus() -> int:
    """CPUs this process may be scheduled on: its affinity, not the machine's count."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(schedulable: int | None = None) -> float:
    """CPUs this process may use on average: the smallest cgroup quota above it, or `schedulable`, else `num_cpus()`."""
    quotas = [float(schedulable or num_cpus())]
    for directory in control_groups("cpu"):
        words = _words(directory / "cpu.max")  # version 2: "max 100000" or "200000 100000"
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = (
            _words(directory / "cpu.cfs_quota_us"),
            _words(directory / "cpu.cfs_period_us"),
        )
        if quota and period and int(quota[0]) > 0:
            quotas.append(int(quota[0]) / int(period[0]))
    return min(quotas)


def default_threads(num_processes: int = 1) -> int:
    """`OMP_NUM_THREADS` where the user set it, else what the quota can run at once, at least one.

    `num_processes` that train together on this machine share it equally.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    is_launched = num_processes > 1 and "TORCHELASTIC_RUN_ID" in os.environ
    if is_launched and not _parent_has("OMP_NUM_THREADS"):
        wanted = ""  # torchrun sets 1 wherever the user set nothing
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return max(1, int(cpu_quota() / num_processes))


def _parent_has(variable: str) -> bool:
    """True if the parent process, torchrun, was itself started with it; False where nothing tells."""
    try:
        block = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False
    return any(entry.startswith(f"{variable}=".encode()) for entry in block.split(b"\0"))


def memory_limit_bytes() -> int:
    """Bytes this process may use: the smallest cgroup limit above it, or the machine's memory."""
    bound = memory_bound()
    if bound is None:  # not Linux
        import psutil

        return int(psutil.virtual_memory().total)
    return bound[0]


def memory_bound() -> tuple[int, str] | None:
    """The least of what bounds the resident memory of this process, in bytes, and what that is; `None`: nothing tells."""
    total = kernel_number(Path("/proc/meminfo"), "MemTotal:", unit=1 << 10)
    found = [] if total is None else [(total, "the memory of this machine")]
    for directory in control_groups("memory"):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            words = _words(directory / name)
            if words and words[0] != "max":
                found.append((int(words[0]), f"the control group {directory}"))
    return min(found, key=lambda each: each[0], default=None)


def innermost_group() -> Path | None:
    """This process's own control group for memory; one above it where only that can be seen."""
    groups = [each for each in control_groups("memory") if (each / "cgroup.procs").exists()]
    return max(groups, key=lambda each: len(each.parts), default=None)


def memory_kills(group: Path | None) -> dict[str, int]:
    """How often the kernel has killed a process for memory, in this control group and on this machine, as far as it tells.

    With numbers that tell the same group and boot from others of that name.
    """
    found: dict[str, int | None] = {"machine": kernel_number(Path("/proc/vmstat"), "oom_kill")}
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        found["boot"] = int(boot[:8], 16)
        if group is not None:
            found["group_id"] = group.stat().st_ino
    except (OSError, ValueError):
        pass
    for name in ("memory.events", "memory.oom_control") if group is not None else ():
        kills = kernel_number(group / name, "oom_kill")  # type: ignore[operator]
        found["group"] = kills if kills is not None else found.get("group")
    return {name: number for name, number in found.items() if number is not None}


def memory_used_bytes() -> int | None:
    """Bytes in use by this process's innermost control group, file cache included; `None` without one."""
    used = [
        int(words[0])
        for directory in control_groups("memory")
        for name in ("memory.current", "memory.usage_in_bytes")
        if (words := _words(directory / name))
    ]
    return min(used, default=None)  # a group holds those inside it: the innermost uses least


def memory_left_bytes() -> int | None:
    """Bytes that this process may still take: on the machine, and in each of its control groups; `None`: nothing tells."""
    left = [
        kernel_number(Path("/proc/meminfo"), "MemAvailable:", unit=1 << 10),
        *map(_left_in, control_groups("memory")),
    ]
    return min((each for each in left if each is not None), default=None)


def shared_memory_left_bytes(place: str = "/dev/shm") -> int | None:
    """Bytes left in what processes hand tensors over in; `None` where that is not there, or has no limit of its own."""
    try:
        found = os.statvfs(place)
    except (OSError, AttributeError):  # not Linux
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def _left_in(group: Path) -> int | None:
    """Bytes until its limit, with the file cache that it can do without; `None` where it has no limit."""
    left = []
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.high", "memory.current"),  # beyond it the kernel slows the group down
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            left.append(int((group / limit).read_text()) - int((group / used).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    if not left:
        return None
    file = group / "memory.stat"  # of version 1 `inactive_file` is without the groups inside
    cache = kernel_number(file, "total_inactive_file") or kernel_number(file, "inactive_file") or 0
    return max(min(left) + cache, 0)


def kernel_number(file: Path, *names: str, unit: int = 1) -> int | None:
    """Sum of the lines `name number` of one of the kernel's files, in bytes of so large a `unit`; `None`: it has none."""
    try:
        lines = [each.split() for each in file.read_text(errors="replace").splitlines()]
        found = [int(words[1]) * unit for words in lines if words and words[0] in names]
    except (OSError, ValueError, IndexError):
        return None
    return sum(found) if found else None


def control_groups(controller: str) -> Iterator[Path]:
    """This process's control group for `controller` and those above it, versions 1 and 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUP / controllers if controllers else _CGROUP
        group = root / path.lstrip("/")
        # Inside a container the path is the host's and only the root is mounted: look at both.
        yield root
        while group != root and root in group.parents:
            yield group
            group = group.parent


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
