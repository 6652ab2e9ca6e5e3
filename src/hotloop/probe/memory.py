"""Highest memory of this process so far. Standard library alone."""

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
