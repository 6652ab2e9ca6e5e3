"""Keeps the probe's frames out of the traceback with which an examined script ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

PROBE = str(Path(__file__).parents[1]) + os.sep


def hide_own_frames() -> None:
    """Have the interpreter print an uncaught error as it would without the probe."""
    shows = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            seen: set[int] = set()
            _hide(error, seen)
            trace = without_own(trace)
        except Exception:  # noqa: BLE001 - the script's own error comes first
            pass
        shows(kind, error, trace)

    sys.excepthook = show


def _hide(error: BaseException | None, seen: set[int]) -> None:
    """In the error and in those that led to it."""
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = without_own(error.__traceback__)
        _hide(error.__cause__, seen)
        error = error.__context__


def without_own(trace: TracebackType | None) -> TracebackType | None:
    """The entries of `trace` that are not the probe's, linked anew; all of them where no other is there."""
    entries, each = [], trace
    while each is not None:
        if not each.tb_frame.f_code.co_filename.startswith(PROBE):
            entries.append(each)
        each = each.tb_next
    if not entries:
        return trace
    for entry, after in zip(entries, [*entries[1:], None]):
        entry.tb_next = after
    return entries[0]
