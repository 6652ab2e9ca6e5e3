"""Saving in the background in a running script."""

from __future__ import annotations

from typing import Any

from hotloop.checkpoint import background_files
from hotloop.optimizations.live_report import Report


def apply(value: Any, report: Report) -> None:
    """What the patch calls; each place that saves is told of."""
    if not background_files.is_supported():
        report.refused("this torch saves in another way")
        return
    background_files.save_in_background()
    assert background_files.SAVES is not None

    def saved(why_not: str | None) -> None:
        if why_not is None:
            report.applied("a save to a path")
        else:
            report.refused(why_not)

    background_files.SAVES.observe = saved
