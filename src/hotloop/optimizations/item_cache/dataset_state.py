"""What a dataset consists of right now, so that a later look tells whether it was changed.

Copies in worker processes, and samples that are cached, are true only as long as it was not. That is looked at when
an epoch is over: its last batch was given, its iterator dropped, or the process ends.
"""

from __future__ import annotations

import hashlib
import os
import random
import weakref
from collections import deque
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from hotloop.optimizations.item_cache.samples import SIMPLE, content_of
from hotloop.probe.foreign_process import before_end

MAX_PARTS = 20_000
DEPTH = 6
SMALL_BYTES = 1 << 16
MANY = 100_000


def fingerprint(*objects: Any) -> str:
    """A digest of their attributes and what those hold: small values by content, large ones by identity and version.

    What is written in C, and single values inside of very large containers, are not looked into.
    """
    look = _Look()
    for each in objects:
        look.add(each, DEPTH)
    return look.digest.hexdigest()


class _Look:
    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)
        self._left = MAX_PARTS
        self._seen: set[int] = set()

    def _say(self, *parts: Any) -> None:
        self.digest.update(repr(parts).encode("utf-8", "surrogatepass"))

    def add(self, value: Any, depth: int) -> None:
        if isinstance(value, SIMPLE):
            self._say(type(value).__name__, hash(value), value if not _is_long(value) else None)
            return
        self._say(type(value).__name__, id(value))
        if id(value) in self._seen or self._left <= 0 or depth <= 0:
            return
        self._seen.add(id(value))
        self._left -= 1
        if isinstance(value, torch.Tensor):
            self._say(value.data_ptr() if value.device.type == "cpu" else 0, value._version)
            self._say(tuple(value.shape))
        elif isinstance(value, torch.Generator):
            self.digest.update(content_of(value.get_state()))
        elif isinstance(value, random.Random):
            self._say(value.getstate())
        elif type(value).__module__.startswith("numpy"):
            self._add_numpy(value)
        elif isinstance(value, dict):
            self._add_many(value, len(value), depth)
            self._add_many(value.values(), len(value), depth)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            self._add_many(value, len(value), depth)
        elif isinstance(value, MethodType):
            self.add(value.__self__, depth - 1)
        elif isinstance(value, FunctionType):
            for cell in value.__closure__ or ():
                self.add(_content_of_cell(cell), depth - 1)
        elif not isinstance(value, (type, ModuleType)):
            self._add_attributes(value, depth)

    def _add_numpy(self, value: Any) -> None:
        generator = getattr(value, "bit_generator", None)
        if generator is not None:
            self._say(generator.state)
        elif hasattr(value, "get_state"):
            self._say(value.get_state())
        elif hasattr(value, "nbytes"):
            self._say(getattr(value, "shape", None), str(getattr(value, "dtype", "")))
            if value.nbytes <= SMALL_BYTES:
                self.digest.update(value.tobytes())

    def _add_many(self, values: Any, length: int, depth: int) -> None:
        self._say(length)
        if length > MANY:
            return
        simple = []
        for each in values:
            if isinstance(each, SIMPLE):
                simple.append(each)
            elif self._left > 0:
                self.add(each, depth - 1)
        self._say(hash(tuple(simple)))

    def _add_attributes(self, value: Any, depth: int) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.add(attributes, depth)
        for kind in type(value).__mro__:
            names = kind.__dict__.get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if isinstance(kind.__dict__.get(name), _SLOT) and hasattr(value, name):
                    self.add(getattr(value, name), depth - 1)


class _Slotted:
    __slots__ = ("slot",)


_SLOT = type(_Slotted.__dict__["slot"])


def _is_long(value: Any) -> bool:
    return isinstance(value, (str, bytes)) and len(value) > 256


def _content_of_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


_open: weakref.WeakSet[Unchanged] = weakref.WeakSet()


class Unchanged:
    """Over one epoch."""

    def __init__(
        self, iterator: Any, parts: tuple[Any, ...], state: str, changed: Callable[[], None]
    ) -> None:
        """parts: what makes items, of which `state` is the fingerprint. changed: called where it is another
        when the epoch is over; must not hold the iterator."""
        self._parts = parts
        self._state = state
        self._changed = changed
        self._process = os.getpid()
        self._finalizer = weakref.finalize(iterator, self._look)
        _open.add(self)

    def look(self) -> None:
        """Now, and not again."""
        self._finalizer()

    def _look(self) -> None:
        if os.getpid() != self._process:  # a child that was forked meanwhile
            return
        try:
            same = fingerprint(*self._parts) == self._state
        except Exception:  # noqa: BLE001 - what cannot be looked at any more was changed
            same = False
        if not same:
            self._changed()


def _look_at_all() -> None:
    for each in list(_open):
        each.look()


before_end(_look_at_all)
