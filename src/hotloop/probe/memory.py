"""Highest memory of this process so far. Standard library alone."""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource

    def host_peak_bytes() -> int | None:
        """Highest resident set, in bytes; `None` where the system does not tell."""
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

else:

    def host_peak_bytes() -> int | None:
        """Highest resident set, in bytes; `None` where the system does not tell."""
        return None
