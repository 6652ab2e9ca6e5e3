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
from typing import TYPE_CHECKING, Any

from hotloop.optimizations.switching import VARIABLE as SWITCHED_VARIABLE
from hotloop.optimizations.switching import Switching, Turn, Turning

if TYPE_CHECKING:
    from hotloop.optimizations.own_frames import OwnFrames

DIRECTORY_VARIABLE = "HOTLOOP_FIXES"
"""Names the directory that `fixes.jsonl` goes to."""
SETTINGS_VARIABLE = "HOTLOOP_FIXES_SETTINGS"
"""JSON: technique -> value."""
APPLIED_FILE = "fixes.jsonl"


class Report:
    """What became of one technique in this process."""

    def __init__(
        self,
        path: Path,
        name: str,
        frames: OwnFrames | None = None,
        turning: Turning | None = None,
    ) -> None:
        self._path = path
        self._name = name
        self._frames = frames
        self._turning = turning
        self._said: set[Any] = set()

    def applied(self, where: str, *, turn: Turn | None = None, **facts: Any) -> None:
        """It took effect on `where`, called from the place where this is called.

        turn: `turn(False)` makes it as it was without, from the next step on, and `turn(True)` as it is now.
        facts: what the technique's `source_edit` needs to know of it; ready for JSON.
        """
        self._say(True, where, facts)
        if self._turning is not None:
            self._turning.offer(self._name, turn, self)

    def refused(self, why: str) -> None:
        """It could not; the script goes on as it is, and was given nothing else than ever."""
        self._say(False, why, {})

    def wrong(self, why: str) -> None:
        """The script may have been given something else already: one such line ends the technique."""
        self._say(False, why, {}, wrong=True)

    def called_from(self) -> Any:
        """What tells one caller of the live form from another; cheap enough for every step."""
        return self._frames.called_from() if self._frames is not None else None

    def _say(self, applied: bool, what: str, facts: dict[str, Any], *, wrong: bool = False) -> None:
        key = (applied, wrong, what, self.called_from(), json.dumps(facts, sort_keys=True))
        if key in self._said:
            return
        self._said.add(key)
        line: dict[str, Any] = {"fix": self._name, "applied": applied, "what": what}
        if wrong:
            line["wrong"] = True
        line["process"] = os.getpid()
        if facts:
            line["facts"] = facts
        if self._frames is not None:
            line["site"] = self._frames.site()
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            pass  # the script must go on; without the line it counts as not applied


def install(directory: Path, settings: dict[str, Any]) -> None:
    """Put the live forms of these techniques into this process."""
    from hotloop.optimizations.catalogue import CATALOGUE

    try:
        from hotloop.optimizations.own_frames import OwnFrames

        frames = OwnFrames()
    except Exception:  # noqa: BLE001 - places are for the patch alone
        frames = None
    switched = os.environ.get(SWITCHED_VARIABLE)
    turning = Turning(directory, Switching.from_json(switched) if switched else None)
    for name, value in settings.items():
        report = Report(directory / APPLIED_FILE, name, frames, turning)
        try:
            live_form = CATALOGUE[name].live_form
            if live_form is None:
                raise LookupError("it has no live form")
            live_form(value, report)
        except Exception as error:  # noqa: BLE001 - the script must go on whatever happens here
            report.refused(f"{type(error).__name__}: {error}")
    _turn_at_step_ends(turning)


def _turn_at_step_ends(turning: Turning) -> None:
    from hotloop.optimizations.by_step import StepCount
    from hotloop.probe.entry import after_step

    count = StepCount()

    def stepped(optimizer: Any) -> None:
        if turning.is_over:  # what follows is timed
            return
        number = count.of(optimizer)
        if number is not None:
            turning.step_ended(number)

    after_step(stepped)


def install_from_environment() -> None:
    """`install` what the trial asked for, if it did."""
    directory, settings = os.environ.get(DIRECTORY_VARIABLE), os.environ.get(SETTINGS_VARIABLE)
    if directory and settings:
        install(Path(directory), json.loads(settings))
