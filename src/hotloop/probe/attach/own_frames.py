"""Keeps the probe's frames out of what an examined script sees: tracebacks, places of warnings, compiled graphs."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from hotloop.probe import entry
from hotloop.probe.attach.sites import Sites, outward
from hotloop.probe.foreign_process import keep_code_untraced

PROBE = str(Path(__file__).parents[1]) + os.sep


def hide_own_frames() -> None:
    """Have the interpreter print an uncaught error as it would without the probe."""
    shows = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            seen: set[int] = set()
            _hide(error, seen)
            trace = without_own(trace)
        except Exception:  # noqa: BLE001 - the script's own error comes first
            pass
        shows(kind, error, trace)

    sys.excepthook = show
    entry.put_back(sys, "excepthook", show, shows)


def hide_in(error: BaseException | None) -> None:
    """What a script raised has no lines of the probe in its traceback, nor have the errors that led to it."""
    _hide(error, set())


def _hide(error: BaseException | None, seen: set[int]) -> None:
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = without_own(error.__traceback__)
        _hide(error.__cause__, seen)
        error = error.__context__


def without_own(trace: TracebackType | None) -> TracebackType | None:
    """The entries of `trace` that are not the probe's, linked again; all of them where no other is there."""
    entries, each = [], trace
    while each is not None:
        if not each.tb_frame.f_code.co_filename.startswith(PROBE):
            entries.append(each)
        each = each.tb_next
    if not entries:
        return trace
    for each, after in zip(entries, [*entries[1:], None]):
        each.tb_next = after
    return entries[0]


_PACKAGES = ("hotloop.probe", "hotloop.core")


def keep_probe_untraced() -> None:
    """Have dynamo skip our frames, which it meets where a compiled function breaks its graph and calls a hooked one.

    What they call in turn is compiled as before.
    """
    for name, module in list(sys.modules.items()):
        if name == "hotloop" or name.startswith(_PACKAGES):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    keep_code_untraced(*_codes(value))


def _codes(value: Any) -> Iterator[CodeType]:
    """The code of a function, or of all that a class defines, with the functions made inside."""
    if isinstance(value, type):
        for each in list(vars(value).values()):
            inner = getattr(each, "fget", None) or getattr(each, "__func__", each)
            if not isinstance(inner, type):
                yield from _codes(inner)
        return
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        yield from _with_inner(code)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def keep_warning_places(sites: Sites) -> None:
    """Have `warnings.warn(..., stacklevel=2)` count the frames of the script and its libraries alone.

    Else the place printed would be in the files of the probe, which stands around some calls.
    """

    def warn(
        original: Any,
        message: Any,
        category: Any = None,
        stacklevel: int = 1,
        source: Any = None,
        **rest: Any,
    ) -> None:
        try:
            stacklevel = level_from(sys._getframe(), stacklevel, sites)
        except Exception:  # noqa: BLE001 - then it names a place of ours
            pass
        original(message, category, stacklevel, source, **rest)

    entry.around_call(warnings, "warn", warn)


def level_from(frame: FrameType | None, level: int, sites: Sites) -> int:
    """`level` as counted from the calling frame outward, without the probe's: so many from `frame`, itself 1."""
    wanted, counted = max(level, 1), 0
    for each in outward(frame):
        name = each.f_code.co_filename
        if not ("importlib" in name and "_bootstrap" in name):  # which Python does not count either
            counted += 1
            wanted -= not sites.is_probe(each.f_code)
            if wanted == 0:
                break
    return counted + wanted
