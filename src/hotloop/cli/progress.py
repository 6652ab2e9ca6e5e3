"""Draws `core.progress`: a bar on a terminal, plain lines anywhere else. Always on stderr, and only
while somebody reads: a stopped terminal or pager must not hold up what is trained."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hotloop.cli.output import can_show, say_if_read
from hotloop.core.progress import Progress, plain_lines, silent

DRAW_EVERY_S = 0.5
"""Also while a child is being timed, so a bar must cost next to nothing: no thread, two draws a second."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A `Progress` that draws itself until the block ends."""
    if sys.stderr.isatty():
        with _bars() as progress:
            yield progress
    else:
        yield plain_lines(say_if_read)


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.table import Table
    from rich.text import Text

    parts = (BarColumn(bar_width=30), TaskProgressColumn(), TimeRemainingColumn())

    class Lines(Bars):
        """A task a line; a note that does not fit beside its bar stands below it."""

        def get_renderables(self) -> Iterator[RenderableType]:
            shown = [task for task in self.tasks if task.visible]
            width = max((len(task.description) for task in shown), default=0)
            for task in shown:
                note = str(task.fields["note"])
                cells = [Text(task.description.ljust(width)), *(part(task) for part in parts)]
                line = Table.grid(padding=(0, 1))
                fits = width + 46 + len(note) <= self.console.width
                line.add_row(*cells, *([Text(note)] if fits else []))
                yield line
                if not fits:
                    yield Text(f"  {note}", no_wrap=True, overflow="ellipsis")

    # Redirecting stdout is for a terminal only: `hotloop ... > file` must still fill the file.
    bars = Lines(
        console=Console(stderr=True), auto_refresh=False, redirect_stdout=sys.stdout.isatty()
    )
    tasks: dict[str, TaskID] = {}
    current: str | None = None
    drawn_at = 0.0

    def progress(what: str, done: float, total: float | None, note: str = "") -> None:
        nonlocal current, drawn_at
        now = time.monotonic()
        ended = total is not None and done >= total
        if what == current and not ended and now - drawn_at < DRAW_EVERY_S:
            return
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total, note=note)
        current, drawn_at = what, now
        bars.update(tasks[what], completed=done, total=total, note=note)
        if can_show():
            bars.refresh()

    with bars:
        yield progress


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
