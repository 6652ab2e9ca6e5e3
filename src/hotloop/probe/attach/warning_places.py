"""Warnings name the line that they would name without the probe.

`warnings.warn(..., stacklevel=2)` counts frames, and where the probe stands around a call it has frames there: the
place printed would be in its files. Standard library alone.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Any

from hotloop.probe import entry
from hotloop.probe.attach.sites import Sites


def keep_warning_places(sites: Sites) -> None:
    """Have `warnings.warn` count the frames of the script and its libraries alone."""

    def warn(
        original: Any,
        message: Any,
        category: Any = None,
        stacklevel: int = 1,
        source: Any = None,
        **rest: Any,
    ) -> None:
        try:
            stacklevel = level_from(sys._getframe(), stacklevel, sites)
        except Exception:  # noqa: BLE001 - then it names a place of ours
            pass
        original(message, category, stacklevel, source, **rest)

    entry.around_call(warnings, "warn", warn)


def level_from(frame: FrameType | None, level: int, sites: Sites) -> int:
    """`level` as counted from the calling frame outward, without the probe's: so many from `frame`, itself 1."""
    wanted, counted = max(level, 1), 0
    while frame is not None:
        if not _is_importing(frame):  # which Python does not count either
            counted += 1
            wanted -= not sites.is_probe(frame.f_code)
            if wanted == 0:
                break
        frame = frame.f_back
    return counted + wanted


def _is_importing(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "importlib" in name and "_bootstrap" in name
