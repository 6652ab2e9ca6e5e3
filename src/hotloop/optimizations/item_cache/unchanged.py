"""Whether the script changes a dataset while its items are kept.

Looked at when an epoch is over: its last batch was given, its iterator dropped, or the process ends.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from hotloop.optimizations.item_cache.dataset_state import fingerprint
from hotloop.probe.foreign_process import before_end

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
