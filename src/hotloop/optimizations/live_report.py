"""What a technique says of itself in somebody's process: where it took effect, called from where in the user's own code,
or why it could not.

Standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from hotloop.probe.attach.sites import Sites, caller

MOST_FRAMES = 16

Toggle = Callable[[bool], None]
Offer = Callable[[str, "Toggle | None", Callable[[str], None]], None]
"""Told which technique took effect, how to toggle it (`None`: it cannot be), and whom to tell where that fails."""


class OwnFrames:
    """The places in the user's own code from which a live form was reached. Made when the script starts: they are named
    relative to its directory of then."""

    def __init__(self) -> None:
        self._sites = Sites()
        self._digests: dict[str, str | None] = {}

    def called_from(self) -> Any:
        """What tells one caller of ours from another, whosever code it is; cheap enough for every step."""
        frame = caller()
        return (frame.f_code, frame.f_lasti) if frame is not None else None

    def site(self) -> dict[str, Any] | None:
        """Ready for JSON: the user's frames, the innermost first; `None` where none is on the stack.

        `direct`: the frame called what is inside of it itself, with no library between.
        """
        first = frame = caller()
        within: FrameType | None = None
        frames: list[dict[str, Any]] = []
        own = self._sites.own
        while frame is not None and len(frames) < MOST_FRAMES:
            if own(frame.f_code):
                direct = frame is first if not frames else within is not None and own(within.f_code)
                frames.append({**self._described(frame), "direct": direct})
            within, frame = frame, self._outside(frame.f_back)
        return {"frames": frames, "inside": self._library(first)} if frames else None

    def _library(self, frame: FrameType | None) -> str | None:
        """What the user's own code called that made the call itself; `None` where it did so itself."""
        library = None
        while frame is not None and not self._sites.own(frame.f_code):
            module = str(frame.f_globals.get("__name__", "?"))
            if module.split(".")[0] != "torch":
                return f"{module}.{frame.f_code.co_name}"
            library = "torch"
            frame = frame.f_back
        return library

    def _outside(self, frame: FrameType | None) -> FrameType | None:
        while frame is not None and self._sites.is_probe(frame.f_code):
            frame = frame.f_back
        return frame

    def _described(self, frame: FrameType) -> dict[str, Any]:
        code = frame.f_code
        return {
            "file": self._sites.short(code.co_filename),
            "line": frame.f_lineno,
            "function": code.co_name,
            "span": _span(frame),
            "sha256": self._digest(code.co_filename),
        }

    def _digest(self, name: str) -> str | None:
        if name not in self._digests:
            try:
                self._digests[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()
            except OSError:
                self._digests[name] = None
        return self._digests[name]


def _span(frame: FrameType) -> tuple[int, int, int, int] | None:
    """Place of the expression that is being evaluated: line, column, last line, end; columns in bytes of UTF-8."""
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, last, column, end = next(positions, (None, None, None, None))
    if line is None or last is None or column is None or end is None:
        return None  # Python was told to leave them out
    return line, column, last, end


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
