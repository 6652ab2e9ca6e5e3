"""Memory of this process: its highest so far, and with all that it started. Standard library alone."""

from __future__ import annotations

import platform
from pathlib import Path


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
