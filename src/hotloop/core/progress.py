"""How long work reports itself. Rooms call it; only the command line draws it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float, float | None, str], None]
"""`progress(what, done, total, note)`: `total` is `None` while unknown; `note` is a few words."""


def silent(what: str, done: float, total: float | None, note: str = "") -> None:
    """Reports to nobody."""
