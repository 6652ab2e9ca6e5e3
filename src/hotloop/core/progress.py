"""How long work reports itself. Rooms call it; only the command line draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hotloop.core.judgement import Verdict
from hotloop.core.ledger import TriedFix

Progress = Callable[[str, float, float | None, str], None]
"""`progress(what, done, total, note)`: `total` is `None` while unknown; `note` is a few words."""


def silent(what: str, done: float, total: float | None, note: str = "") -> None:
    """Reports to nobody."""


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
