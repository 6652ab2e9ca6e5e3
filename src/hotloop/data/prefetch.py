"""A pure function called ahead of whoever needs its results, in one thread.

No worker process: what a batch needs is a copy out of a memory map, which takes less time than sending it
from another process would. Nothing here matters for what comes out: with any depth it is the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """`next()` gives `make(first)`, `make(first + 1)`, ... up to `make(last - 1)`.

    At most `depth` of them are made and not yet taken; with 0 each is made when it is asked for. What
    `make` raises is raised by the `next()` whose turn it was.
    """

    def __init__(self, make: Callable[[int], T], *, first: int, last: int, depth: int) -> None:
        self._make = make
        self._next = first
        self._last = last
        self._depth = depth
        self._changed = threading.Condition()
        self._ready: deque[tuple[T | None, BaseException | None]] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Prefetch[T]:
        if self._depth and self._next < self._last:
            self._thread = threading.Thread(
                target=self._work, args=(self._next,), name="hotloop-prefetch", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not None:
            # One that waits for data which may never come is left behind: it dies with the process.
            self._thread.join(timeout=1.0)

    def next(self) -> T:
        """Raises `IndexError` after the last one."""
        if self._next >= self._last:
            raise IndexError(f"nothing was to be made after {self._last - 1}")
        self._next += 1
        if self._thread is None:
            return self._make(self._next - 1)
        with self._changed:
            while not self._ready:
                self._changed.wait()
            value, error = self._ready.popleft()
            self._changed.notify_all()
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _work(self, first: int) -> None:
        for number in range(first, self._last):
            with self._changed:
                while len(self._ready) >= self._depth and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
            value: T | None = None
            failed: BaseException | None = None
            try:
                value = self._make(number)
            except BaseException as error:  # noqa: BLE001  # carried to whoever asks
                failed = error
            with self._changed:
                self._ready.append((value, failed))
                self._changed.notify_all()
            if failed is not None:
                return
