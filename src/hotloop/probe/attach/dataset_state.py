"""A cheap fingerprint of what a loader's workers hold a copy of, and who may change it: workers that live on do not see that."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from hotloop.probe.attach.sites import variables_of

MOST = 2_000
"""Values that are looked at; what has more is compared by these."""
DEPTH = 4
ITEMS = 64
"""Of each container, beside its length."""
Held = dict[int, Any]
"""Objects by their identity."""


def state_of(*held: Any) -> int:
    """A hash of numbers, texts, identities and lengths within these objects. An array changed in place is not noticed,
    a tensor is."""
    return hash(tuple(_found(held)[0]))


def _found(held: Iterable[Any]) -> tuple[list[object], Held]:
    found: list[object] = []
    seen: Held = {}
    for each in held:
        _look(each, DEPTH, found, seen)
    return found, seen


def may_change(
    held: Iterable[Any],
    *,
    frames: Iterable[FrameType],
    files: Iterable[str],
    own: Callable[[CodeType], bool],
) -> bool:
    """Whether the user's code may change these objects later, perhaps only late in a training: a line of it sets an attribute of one of
    them or calls a method (`loader.dataset.mosaic = False`, `crop.size = 64`), or their own code reads something else
    that can change: a global or an enclosing variable that is no constant.

    frames: the user's, in which they have names. files: the user's sources. own: whether code is the user's.
    """
    objects, sources = _found(held)[1], list(files)
    constants: set[str] = set()
    for function in _functions(objects.values()):
        if own(function.__code__) and not _constants_of(function, constants, own, sources, set()):
            return True
    names = "|".join(sorted({"dataset", *_names(objects, frames)}))
    patterns = [
        rf"\b({names})(\.(?!__)\w+)+\s*([-+*/|]?=[^=]|\()",
        rf"\b({names})(\.\w+)*\[[^\]\n]*\]\s*=[^=]",
    ]
    patterns += [r"\bset_epoch\(", r"\bsetattr\("]
    patterns += [rf"\bglobal\b[^\n]*\b{name}\b|\.{name}\s*[-+*/|]?=[^=]" for name in constants]
    changes = re.compile("|".join(patterns))
    for file in sources:
        with contextlib.suppress(OSError):
            if changes.search(Path(file).read_text(encoding="utf-8", errors="replace")):
                return True
    return False


def _functions(objects: Iterable[Any]) -> Iterator[FunctionType]:
    """The code of these objects: functions, and methods of their classes."""
    for each in list(objects):
        function = getattr(each, "__func__", each)
        if isinstance(function, FunctionType):
            yield function
            continue
        for kind in type(each).__mro__:
            yield from (made for made in vars(kind).values() if isinstance(made, FunctionType))


def _constants_of(
    function: FunctionType,
    constants: set[str],
    own: Callable[[CodeType], bool],
    sources: Collection[str],
    seen: set[CodeType],
) -> bool:
    """Adds the global constants that it and the user's functions that it calls read; false where they read what can change in place."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    if not all(_is_fixed(each) or _is_constant(each) for each in cells):
        return False
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        if code in seen:
            continue
        seen.add(code)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        spaces = [function.__globals__]
        read = [spaces[0][name] for name in code.co_names if name in spaces[0]]
        spaces += [vars(m) for m in read if isinstance(m, ModuleType) and getattr(m, "__file__", None) in sources]  # fmt: skip
        for space in spaces:
            for name in code.co_names:
                value = space.get(name, torch)  # not there: an attribute of something else
                if _is_constant(value):
                    constants.add(name)
                elif not _is_fixed(value) or (
                    isinstance(value, FunctionType)
                    and own(value.__code__)
                    and not _constants_of(value, constants, own, sources, seen)
                ):
                    return False
    return True


def _is_filled(cell: Any) -> bool:
    with contextlib.suppress(ValueError):  # its variable has no value yet
        return bool([cell.cell_contents])
    return False


def _is_constant(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def _is_fixed(value: Any) -> bool:
    return isinstance(value, (ModuleType, type, FunctionType, BuiltinFunctionType, torch.dtype, torch.device))  # fmt: skip


def _names(objects: Held, frames: Iterable[FrameType]) -> Iterator[str]:
    """How the user's code calls them: variables, and attributes of variables."""
    for frame in frames:
        for values in (variables_of(frame), frame.f_globals):
            for name, value in list(values.items()):
                if id(value) in objects and not name.startswith("__"):
                    yield name
                inner = getattr(value, "__dict__", None)
                if isinstance(inner, dict) and not isinstance(value, (ModuleType, type)):
                    yield from (key for key, each in list(inner.items()) if id(each) in objects)


def _look(value: Any, depth: int, found: list[object], seen: Held) -> None:
    if len(found) >= MOST:
        return
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        found.append(value)
        return
    found.append(id(value))
    if isinstance(value, torch.Tensor):
        found.append(value._version)
    if isinstance(value, (torch.Tensor, type)) or not depth or id(value) in seen:
        return
    seen[id(value)] = value
    inner: Iterable[tuple[object, Any]]
    if isinstance(value, dict):  # any other mapping may do something when it is looked at
        inner = dict.items(value)
        found.append(len(value))
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
        found.append(len(value))
    else:
        owner = getattr(value, "__self__", value)  # a method: what it is of
        inner = getattr(owner, "__dict__", {}).items()
    for key, item in islice(inner, ITEMS):
        found.append(str(key))
        _look(item, depth - 1, found, seen)
