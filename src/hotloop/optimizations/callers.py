"""Whose code calls something that a live form stands around. Standard library alone, and torch's place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

OURS = str(Path(__file__).parents[1])
TORCH = str(Path(torch.__file__).parent)


def caller(passing: Sequence[str] = ()) -> FrameType | None:
    """The innermost frame that is neither ours nor in a file whose path starts with one of `passing`."""
    frame: FrameType | None = sys._getframe(1)
    passed = (OURS, *passing)
    while frame is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    return frame


def place(frame: FrameType | None) -> str:
    """`train.py:42`."""
    if frame is None:
        return "?"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
