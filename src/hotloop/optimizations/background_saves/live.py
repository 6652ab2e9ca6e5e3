"""`torch.save` of a running script on a thread; the first file of each place in it is compared with the script's own."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

from hotloop.optimizations.background_saves import DEFINITION
from hotloop.optimizations.hooks import inside_trainer
from hotloop.optimizations.live_report import Report
from hotloop.probe.entry import around_call


def apply(value: Any, report: Report) -> None:
    """Wrap `torch.save`."""
    scope: dict[str, Any] = {"torch": torch}
    exec(DEFINITION, scope)  # what the patch writes
    Saving(scope["background_saves"](), report)


class Saving:
    """Saves in the background, and says of each place where it does."""

    def __init__(self, saves: Any, report: Report) -> None:
        self._saves, self._report = saves, report
        self._is_inside = False
        self._compared: set[Any] = set()
        around_call(torch, "save", self._save)
        around_call(os, "stat", self._stat)

    def _save(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            self._report.refused("it saves into an open file")
            original(obj, f, *args, **kwargs)
            return
        saving, at_once = threading.get_ident(), False

        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal at_once
            at_once = at_once or threading.get_ident() == saving
            original(obj, f, *args, **kwargs)

        self._is_inside = True
        try:
            self._saves(save, obj, f, *args, **kwargs)
        finally:
            self._is_inside = False
        if at_once:
            self._report.refused(
                "what it saves lies on a device, cannot be copied, or goes into something that is no file"
            )
            return
        self._report.applied("torch.save", trainer=inside_trainer())
        place = self._report.called_from()
        if place not in self._compared:
            self._compared.add(place)
            if not _is_same(original, obj, Path(f), *args, **kwargs):
                self._report.wrong(f"{Path(f).name} holds other bytes than the script's own")

    def _stat(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Audit hooks are not told: with the patch the script would see a file of before."""
        waiting = self._saves.pending
        if waiting and not self._is_inside and isinstance(path, (str, os.PathLike)):
            writing, _ = waiting.get(os.path.realpath(path), (None, 0))
            if writing is not None and threading.current_thread() is threading.main_thread():
                self._report.wrong(f"the script looks at {Path(path).name} while it is written")
                writing.exception()
        return original(path, *args, **kwargs)


def _is_same(save: Any, obj: Any, written: Path, *args: Any, **kwargs: Any) -> bool:
    """Whether the file is, to the byte, what `save` makes of the object; once more where that is never the same."""
    content = written.read_bytes()  # waits for it
    for _ in range(2):
        with tempfile.TemporaryDirectory(dir=written.parent) as folder:
            directly = Path(folder) / written.name
            save(obj, directly, *args, **kwargs)
            made = directly.read_bytes()
        if made == content:
            return True
        content = made
    return False
