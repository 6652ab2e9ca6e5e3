"""What a technique says of itself in somebody's process: where it took effect, or why it could not.

Standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

Toggle = Callable[[bool], None]
Offer = Callable[[str, "Toggle | None", Callable[[str], None]], None]
"""Told which technique took effect, how to toggle it (`None`: it cannot be), and whom to tell where that fails."""

if TYPE_CHECKING:
    from hotloop.optimizations.own_frames import OwnFrames


class Report:
    """What became of one technique in this process."""

    def __init__(
        self,
        path: Path,
        name: str,
        frames: OwnFrames | None = None,
        offer: Offer | None = None,
    ) -> None:
        self._path = path
        self._name = name
        self._frames = frames
        self._offer = offer
        self._said: set[Any] = set()

    def applied(self, where: str, *, toggle: Toggle | None = None, **facts: Any) -> None:
        """It took effect on `where`, called from the place where this is called.

        toggle: `toggle(False)` makes it as it was without, from the next step on, and `toggle(True)` as it is now.
        facts: what the technique's `source_edit` needs to know of it; ready for JSON.
        """
        self._say(True, where, facts)
        self.offer(toggle)

    def offer(self, toggle: Toggle | None) -> None:
        """For `applied`, or after it: `None` where what took effect cannot be toggled."""
        if self._offer is not None:
            self._offer(self._name, toggle, self.wrong)

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


def has_accelerator() -> bool:
    """Whether there is any in this process: then turning something by the host says little of the device."""
    torch: Any = sys.modules["torch"]
    return bool(torch.accelerator.is_available())
