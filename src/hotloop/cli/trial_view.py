"""Draws `core.progress.TrialProgress` on stderr: a small table on a terminal, gone at the end, and lines anywhere else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hotloop.cli.output import can_show, printable, say, say_if_read
from hotloop.cli.progress import DRAW_EVERY_S
from hotloop.core.ledger import TriedFix
from hotloop.core.progress import PairProgress, TrialProgress
from hotloop.report import numbers
from hotloop.report.ledger import ratio_words, status_words

LINE_EVERY_S = 30.0
MOST_ROWS, OTHER_ROWS = 8, 3
"""Of the table, one for each fix; and around it."""


@contextmanager
def trial_view(total_s: float | None = None) -> Iterator[TrialView]:
    """A view that is gone at the end of the block. total_s: seconds that it may take."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    view = (TrialTable if is_terminal else TrialView)(total_s)
    try:
        yield view
    finally:
        view.clear()


class TrialView:
    """Lines for logs: one for each fix that was tried, else one every `LINE_EVERY_S`."""

    def __init__(self, total_s: float | None) -> None:
        self._total_s = total_s
        self._begun = self._shown_at = time.monotonic()
        self._num_told = 0

    def show(self, now: TrialProgress) -> None:
        used = time_used(time.monotonic() - self._begun, self._total_s)
        for fix in now.tried[self._num_told :]:
            say_if_read(f"{used}  {fix.name}: {result(fix)}")
        self._num_told = len(now.tried)
        if now.process and self._is_due(LINE_EVERY_S):
            say_if_read(f"{used}  {_of_which_fix(now)}{_process(now)}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        say(text)

    def clear(self) -> None:
        """Remove what does not stay."""

    def _is_due(self, every_s: float) -> bool:
        now = time.monotonic()
        if now - self._shown_at < every_s:
            return False
        self._shown_at = now
        return True


class TrialTable(TrialView):
    """A table that is drawn again where it is; drawn by who calls, since a thread would disturb what is timed."""

    _live: Live | None = None

    def show(self, now: TrialProgress) -> None:
        if not self._is_due(DRAW_EVERY_S) or not can_show():
            return
        if self._live is None:
            self._live = _started()
        console = self._live.console
        used_s = time.monotonic() - self._begun
        used = time_used(used_s, self._total_s)
        if self._total_s is not None and used_s < self._total_s:
            used += f", {_minutes(self._total_s - used_s)} left"
        self._live.update(table(now, used, console.width, console.height), refresh=True)

    def clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None  # one that is started again would erase lines above it


def _started() -> Live:
    live = Live(
        console=Console(stderr=True, force_terminal=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    live.console.show_cursor()  # else it would stay hidden where we are killed
    return live


def table(now: TrialProgress, used: str, width: int, height: int) -> RenderableType:
    """Each fix with its state, the interim result of the one that is measured, and what is next."""
    rows = Table.grid(padding=(0, 1))
    rows.add_column(no_wrap=True, overflow="ellipsis")
    rows.add_column()  # the one that gives way where the terminal is narrow
    for name, state, style in _rows(now, min(MOST_ROWS, max(height - OTHER_ROWS - 1, 1))):
        rows.add_row(Text(name, style=style), _line(state, style))
    count = f"fix {_number(now)} of {len(now.fixes)}, " if now.current is not None else ""
    done = _process(now) if now.pair is None else _interim(now.pair)
    lines = [_line(line) for line in (count + used, done, _next(now)) if line]
    # Narrower than the terminal: the ^C that it shows itself must not begin a line.
    return Constrain(Group(lines[0], rows, *lines[1:]), width - 3)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def time_used(seconds: float, total_s: float | None) -> str:
    """`0:30`, `0:30 of 5:00`, or `5:10 (5:00 were planned)`."""
    if total_s is None:
        return _minutes(seconds)
    used, planned = _minutes(seconds), _minutes(total_s)
    return f"{used} of {planned}" if seconds <= total_s else f"{used} ({planned} were planned)"


def result(fix: TriedFix) -> str:
    """The outcome of its trials: the ratio where it was kept, else the reason."""
    status = status_words(fix.status)
    if fix.status == "kept" and fix.verdict is not None:
        return f"{status} {ratio_words(fix.verdict)}"
    return f"{status}: {printable(' '.join(fix.why.split()))}"


def _rows(now: TrialProgress, most: int) -> list[tuple[str, str, str]]:
    """Name, state and style of the fixes around the current one."""
    styles = {"kept": "green", "failed": "red"}
    rows = [(f"  {fix.name}", result(fix), styles.get(fix.status, "")) for fix in now.tried]
    for name in now.fixes[len(now.tried) :]:
        is_current = name == now.current
        row = (f"> {name}", _state(now), "bold") if is_current else (f"  {name}", "waiting", "dim")
        rows.append(row)
    if now.together and (now.process or now.pair is not None):
        rows.append(("> together", _state(now), "bold"))
    at = _number(now) if now.current is not None else len(rows) if now.together else 0
    first = min(max(at - most // 2 - 1, 0), max(len(rows) - most, 0))
    return rows[first : first + most]


def _state(now: TrialProgress) -> str:
    if now.pair is None:
        return "comparing losses"
    return f"pair {now.pair.number} of up to {now.pair.up_to}"


def _interim(pair: PairProgress) -> str:
    known = pair.interim
    if known is None or known.ratio is None:
        return "no pair is measured yet"
    if known.ratio_low is None:
        return f"interim: {numbers.ratio(known.ratio)} on one pair, too few for an interval"
    if (known.ratio_high or 0.0) > 10 * known.ratio or known.ratio_low < known.ratio / 10:
        return f"interim: the {known.num_pairs} pairs so far are too far apart to tell anything"
    return f"interim: {ratio_words(known)}"


def _next(now: TrialProgress) -> str:
    waiting = [name for name in now.fixes[len(now.tried) :] if name != now.current]
    if waiting:
        more = f" and {len(waiting) - 1} more" if waiting[1:] else ""
        return f"next: {waiting[0]}{more}"
    if now.together or len(now.fixes) < 2:
        return "next: the answer"
    return "next: what is kept, together"


def _process(now: TrialProgress) -> str:
    return f"{now.process}, {now.note}" if now.note else now.process


def _of_which_fix(now: TrialProgress) -> str:
    if now.current is None:
        return "together: " if now.together else ""
    return f"{now.current} ({_number(now)} of {len(now.fixes)}): "


def _number(now: TrialProgress) -> int:
    assert now.current is not None
    return now.fixes.index(now.current) + 1


def _minutes(total_s: float) -> str:
    minutes, seconds = divmod(round(total_s), 60)
    return f"{minutes}:{seconds:02d}"
