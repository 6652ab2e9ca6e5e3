"""Techniques in somebody else's process: put there right after it has imported torch.

Runs inside the foreign interpreter: standard library and torch alone. Each technique writes a line to
`fixes.jsonl` whenever it takes effect, or when it cannot and why. What a process never wrote was not
applied there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

DIRECTORY_VARIABLE = "HOTLOOP_FIXES"
"""Names the directory that `fixes.jsonl` goes to."""
SETTINGS_VARIABLE = "HOTLOOP_FIXES_SETTINGS"
"""JSON: technique -> value."""
APPLIED_FILE = "fixes.jsonl"


class Report:
    """What became of one technique in this process."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._said: set[tuple[bool, str]] = set()

    def applied(self, where: str) -> None:
        """It took effect on `where`."""
        self._say(True, where)

    def refused(self, why: str) -> None:
        """It could not; the script goes on as it is."""
        self._say(False, why)

    def _say(self, applied: bool, what: str) -> None:
        if (applied, what) in self._said:
            return
        self._said.add((applied, what))
        line = {"fix": self._name, "applied": applied, "what": what, "process": os.getpid()}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            pass  # the script must go on; without the line it counts as not applied


def install(directory: Path, settings: dict[str, Any]) -> None:
    """Put the live forms of these techniques into this process."""
    from hotloop.optimizations.catalogue import CATALOGUE

    for name, value in settings.items():
        report = Report(directory / APPLIED_FILE, name)
        try:
            live_form = CATALOGUE[name].live_form
            if live_form is None:
                raise LookupError("it has no live form")
            live_form(value, report)
        except Exception as error:  # noqa: BLE001 - the script must go on whatever happens here
            report.refused(f"{type(error).__name__}: {error}")


def install_from_environment() -> None:
    """`install` what the trial asked for, if it did."""
    directory, settings = os.environ.get(DIRECTORY_VARIABLE), os.environ.get(SETTINGS_VARIABLE)
    if directory and settings:
        install(Path(directory), json.loads(settings))
