"""Keeps the compiler out of the probe: its frames run as they are, wherever they are met."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from hotloop.probe.foreign_process import keep_code_untraced

_PACKAGES = ("hotloop.probe", "hotloop.core")


def keep_probe_untraced() -> None:
    """Where a compiled function breaks its graph and calls a hooked one, dynamo meets our frames.

    What they call in turn is compiled as ever.
    """
    for name, module in list(sys.modules.items()):
        if name == "hotloop" or name.startswith(_PACKAGES):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    keep_code_untraced(*_codes(value))


def _codes(value: Any) -> Iterator[CodeType]:
    """Of a function, or of all that a class defines, and of the functions made inside."""
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
