"""Techniques in somebody else's process: put there right after it has imported torch.

Runs inside the foreign interpreter: standard library and torch alone. Each technique writes a line to
`fixes.jsonl` whenever it takes effect, or when it cannot and why, and at which place of the user's own
code that was: the patch is made of it. What a process never wrote was not applied there. A technique that
finds out too late that it could not says so as well: then it is rejected, whatever else it said.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hotloop.core.child import APPLIED_FILE, FIXES, FIXES_SETTINGS, TOGGLED
from hotloop.optimizations.live_report import Report
from hotloop.trial.toggling import Toggler, ToggleSchedule


def install(directory: Path, settings: dict[str, Any]) -> None:
    """Put the live forms of these techniques into this process."""
    from hotloop.optimizations.catalogue import CATALOGUE

    try:
        from hotloop.optimizations.own_frames import OwnFrames

        frames = OwnFrames()
    except Exception:  # noqa: BLE001 - places are for the patch alone
        frames = None
    toggled = os.environ.get(TOGGLED)
    toggler = Toggler(directory, ToggleSchedule.from_json(toggled) if toggled else None)
    for name, value in settings.items():
        report = Report(directory / APPLIED_FILE, name, frames, toggler.offer)
        try:
            live_form = CATALOGUE[name].live_form
            if live_form is None:
                raise LookupError("it has no live form")
            live_form(value, report)
        except Exception as error:  # noqa: BLE001 - the script must go on whatever happens here
            report.refused(f"{type(error).__name__}: {error}")

    def step_ended(number: int, optimizer: Any) -> None:
        if not toggler.is_over:  # what follows is timed
            toggler.step_ended(number)

    from hotloop.optimizations.hooks import after_each_step

    after_each_step(step_ended)


def install_from_environment() -> None:
    """`install` what the trial asked for, if it did."""
    directory, settings = os.environ.get(FIXES), os.environ.get(FIXES_SETTINGS)
    if directory and settings:
        install(Path(directory), json.loads(settings))
