"""Whether a foreign script compiles anything.

Who wants to see single operations needs a dispatch mode, and a frame that dynamo meets under one is never
compiled again: the script would be slower for having been looked at, or fail with `fullgraph=True`.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from hotloop.core.child import FIXES_SETTINGS
from hotloop.probe.entry import around_call

_called: bool | None = None
"""`None`: nobody looks yet."""


def watch_compiler() -> None:
    """From now on; to be called when torch has just been imported."""
    global _called
    if _called is not None:
        return
    _called = False

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        global _called
        _called = True
        return original(*args, **kwargs)

    around_call(torch, "compile", around)


def compiler_is_used() -> bool:
    """Whether something was compiled, or a technique beside this one is about to compile it."""
    return bool(_called) or "compile" in json.loads(os.environ.get(FIXES_SETTINGS) or "{}")
