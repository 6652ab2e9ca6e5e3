"""What somebody's command was seen to do, as sections of the page."""

from __future__ import annotations

from html import escape

from hotloop.core.census import Census
from hotloop.report.evidence import call_rows, line_rows, loader_rows, operator_rows, use_rows
from hotloop.report.tables import coded, table


def host_section(census: Census | None) -> str:
    """The lines in which the thread that trains was seen, and what it called."""
    if census is None:
        return ""
    parts = []
    if lines := line_rows(census.lines):
        parts.append(
            "<p>Samples of the training thread, many a second: share of the counted time, phase, the line "
            "of the script, its function, and what that line called.</p>"
            + table(("share", "phase", "line", "function", "inside"), lines)
        )
    if calls := call_rows(census):
        parts.append(
            "<h3>Logging, saving, evaluation, copies and waits</h3>"
            + table(("", "call", "line", "number", "host time"), calls)
        )
    if operators := operator_rows(census.operators):
        parts.append(
            "<h3>Operations of a step (profiled; not in the counted steps)</h3>"
            + table(("operation", "dtype", "per step", "time per step"), operators)
        )
    return "".join(parts)


def loaders_section(census: Census | None) -> str:
    """Each loader that was iterated."""
    if census is None or not census.loaders:
        return ""
    return "".join(
        f"<h3>{coded(title)}</h3>{table(('', ''), rows, kind='pairs-of')}"
        for title, rows in loader_rows(census.loaders)
    )


def use_section(census: Census | None) -> str:
    """Device, precision, optimizer and what else was observed."""
    if census is None:
        return ""
    reasons = "".join(f"<li><code>{escape(why)}</code></li>" for why in census.recompile_reasons)
    return table(("", ""), use_rows(census), kind="pairs-of") + (
        f"<h3>Why it was recompiled</h3><ul>{reasons}</ul>" if reasons else ""
    )
