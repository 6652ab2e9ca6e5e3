"""The directory in which hotloop keeps what it can make again: prepared text, measured ceilings."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """`HOTLOOP_CACHE`, else the user's cache directory of this platform."""
    chosen = os.environ.get("HOTLOOP_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("hotloop"))
