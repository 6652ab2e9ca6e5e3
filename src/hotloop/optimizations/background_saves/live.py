"""Saving in the background in a running script."""

from __future__ import annotations

import filecmp
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from hotloop.checkpoint import background_files, recorded_saves
from hotloop.core.child import SAME_RANDOMNESS
from hotloop.optimizations.live_report import Report
from hotloop.probe.entry import around_call


def apply(value: Any, report: Report) -> None:
    """What the patch calls; each place that saves is told of. Where losses are compared, so are the bytes of its files."""
    if not recorded_saves.is_supported():
        report.refused("this torch saves in another way")
        return
    background_files.save_in_background()
    saves = background_files.SAVES
    assert saves is not None

    def saved(why_not: str | None) -> None:
        if why_not is None:
            report.applied("a save to a path", toggle=saves.toggle)
        else:
            report.refused(why_not)

    def save_twice(save: Any, held: Any, given: Any, *args: Any, **kwargs: Any) -> None:
        save(held, given, *args, **kwargs)
        if not isinstance(given, (str, os.PathLike)) or not Path(given).is_file():
            return
        path = Path(given)
        with saves.unwatched(), tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
            again = f"{path.parent}/{Path(folder).name}/{path.name}"
            save(held, again, *args, **kwargs)
            if not filecmp.cmp(given, again, shallow=False):
                report.wrong(f"{path.name} is not the file that an ordinary save makes")

    saves.observe = saved
    report.offer(saves.toggle)  # a first save comes late
    if SAME_RANDOMNESS in os.environ:
        around_call(torch, "save", save_twice)
