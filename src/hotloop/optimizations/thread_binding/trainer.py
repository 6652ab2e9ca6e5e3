"""Binding the threads of this process's pool, which torch does not name: they are those that a large operation keeps busy."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import torch

BUSY_NS = 200_000
"""Of the time that the large operation takes of each thread of the pool, a part that no other thread spends meanwhile."""
_TASKS = Path("/proc/self/task")


def bind_threads(rank: int = 0) -> int:
    """Bind every thread of the pool but this one; how many were. They stay bound in this process.

    rank: of the processes on this machine, each of which takes CPUs of its own.
    """
    pool, cpus = _pool(), cpus_in_order()
    for number, thread in enumerate(pool, 1 + rank * torch.get_num_threads()):
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(thread, {cpus[number % len(cpus)]})
    return len(pool)


def cpus_in_order(system: Path = Path("/sys/devices/system")) -> list[int]:
    """The CPUs of this process: node by node, of each node first one of each core, then those that share one."""

    def place(cpu: int) -> tuple[int, int, int]:
        node = next((system / f"cpu/cpu{cpu}").glob("node*"), Path("node0"))
        with suppress(OSError, ValueError):
            listed = (system / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
            first = int(listed.replace("-", ",").split(",")[0])
            return int(node.name.removeprefix("node")), int(cpu != first), cpu
        return 0, 0, cpu

    return sorted(os.sched_getaffinity(0), key=place)


def _pool() -> list[int]:
    """Ids of the threads that compute beside this one."""
    operand = torch.ones(1 << 21)
    operand.sin()  # starts them
    before = _spent_ns()
    operand.sin()
    spent = {thread: ns - before.get(thread, 0) for thread, ns in _spent_ns().items()}
    spent.pop(threading.get_native_id(), None)
    busiest = sorted(spent, key=lambda thread: -spent[thread])[: torch.get_num_threads() - 1]
    return sorted(thread for thread in busiest if spent[thread] >= BUSY_NS)


def _spent_ns() -> dict[int, int]:
    """Nanoseconds that each thread of this process has run for."""
    found = {}
    for task in _TASKS.iterdir():
        with suppress(OSError, ValueError, IndexError):
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return found
