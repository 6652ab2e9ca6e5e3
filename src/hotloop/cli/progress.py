"""Draws `core.progress`: a bar on a terminal, plain lines anywhere else. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hotloop.core.progress import Progress

DRAW_EVERY_S = 0.5
"""Also while a child is being timed, so a bar must cost next to nothing: no thread, two draws a second."""
LINE_EVERY_S = 15.0


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A `Progress` that draws itself until the block ends."""
    if sys.stderr.isatty():
        with _bars() as progress:
            yield progress
    else:
        yield plain_lines(lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201


def plain_lines(write: Callable[[str], None]) -> Progress:
    """Lines for logs: one for a new `what`, one when it is done, else one every `LINE_EVERY_S`."""
    current = ""
    finished = False
    written_at = 0.0

    def progress(what: str, done: float, total: float | None, note: str = "") -> None:
        nonlocal current, finished, written_at
        now = time.monotonic()
        ended = total is not None and done >= total
        new = what != current
        if new:
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


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    # Redirecting stdout is for a terminal only: `hotloop ... > file` must still fill the file.
    bars = Bars(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        redirect_stdout=sys.stdout.isatty(),
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
        bars.refresh()

    with bars:
        yield progress
