"""The places in the user's own code from which a live form was reached. Standard library and torch alone."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from hotloop.probe.attach.sites import Sites, caller

MOST_FRAMES = 16


class OwnFrames:
    """Made when the script starts: places are named relative to its directory of then."""

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
