"""Draws `core.progress` into the title of the terminal, where it cannot mix with a command's output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hotloop.core.progress import Progress, silent

KEEP, RESTORE = "\x1b[22;0t", "\x1b[23;0t"
"""xterm's stack of titles; terminals without one ignore both."""


@contextmanager
def title_progress() -> Iterator[Progress]:
    """A `Progress` in the title until the block ends; silent where stderr is no terminal that has one.

    The command shares the terminal and we do not see when it writes: a line of ours would land inside
    one of its own, or inside its progress bar.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "linux"):
        yield silent
        return

    def write(text: str) -> None:
        # One call: what is written at once is not torn apart by what the command writes.
        with suppress(OSError, ValueError):
            os.write(sys.stderr.fileno(), text.encode())

    def progress(what: str, done: float, total: float | None, note: str = "") -> None:
        share = f" {100 * done / total:.0f} %" if total else ""
        write(f"\x1b]0;hotloop: {what}{share}{f', {note}' if note else ''}\x07")

    write(KEEP)
    try:
        yield progress
    finally:
        write(RESTORE)
