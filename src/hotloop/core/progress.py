"""How long work reports itself. Rooms call it; only the command line draws it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hotloop.core.judgement import Verdict
from hotloop.core.ledger import TriedFix

LINE_EVERY_S = 15.0
Progress = Callable[[str, float, float | None, str], None]
"""`progress(what, done, total, note)`: `total` is `None` while unknown; `note` is a few words."""


def silent(what: str, done: float, total: float | None, note: str = "") -> None:
    """Reports to nobody."""


def plain_lines(write: Callable[[str], None]) -> Progress:
    """Lines for logs: one for a new `what`, one when it is done, else one every `LINE_EVERY_S`."""
    current, finished, written_at = "", False, 0.0

    def progress(what: str, done: float, total: float | None, note: str = "") -> None:
        nonlocal current, finished, written_at
        now = time.monotonic()
        ended = total is not None and done >= total
        if new := what != current:
            current, finished = what, False
        if not (new or (ended and not finished) or (now - written_at >= LINE_EVERY_S)):
            return
        if finished:  # after the end, only another `what` is news
            return
        finished = ended
        written_at = now
        share = f" {100 * done / total:3.0f} %" if total else ""
        write(f"{what}{share}{'  ' + note if note else ''}")

    return progress


@dataclass(frozen=True, slots=True)
class PairProgress:
    """The pair that is being measured."""

    number: int
    """From 1."""
    up_to: int
    interim: Verdict | None = None
    """The judge's verdict of the pairs before this one; `None` before the first."""


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """How far the trials of one call of the doctor have come."""

    fixes: tuple[str, ...] = ()
    """In the order in which they are tried."""
    tried: tuple[TriedFix, ...] = ()
    """What came of the first of them; one that was kept may yet be rejected when they are measured together."""
    current: str | None = None
    """The fix being tried; `None` before and after."""
    together: bool = False
    """All fixes were tried, and those that were kept are measured together."""
    pair: PairProgress | None = None
    """`None` while losses are compared."""
    process: str = ""
    """A name for the process that runs; empty before the first of this fix."""
    note: str = ""
    """A few words about it: since when it runs."""


ShowTrials = Callable[[TrialProgress], None]
"""Called at every change, and about once a second while a process runs."""
