"""An iterator that works ahead of whoever takes its items, in one thread.

No worker process: what a batch needs is a copy out of a memory map, which takes less time than sending it
from another process would. The items are the same with any depth.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """The items of an iterator, and the exception that ended it when its turn comes. Use it as a context.

    At most `depth` of them are made and not yet taken; with 0 each is made when it is asked for.
    """

    def __init__(self, items: Iterator[T], *, depth: int) -> None:
        self._items = items
        self._made: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._closed = False
        self._thread: threading.Thread | None = None
        if depth:
            self._thread = threading.Thread(target=self._work, name="hotloop-prefetch", daemon=True)

    def __enter__(self) -> Prefetch[T]:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._room.release()
        if self._thread is not None:
            # One that waits for data which may never come is left behind: it dies with the process.
            self._thread.join(timeout=1.0)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._thread is None:
            return next(self._items)
        item, error = self._made.get()
        if error is not None:
            self._made.put((None, error))  # for whoever asks again
            raise error
        self._room.release()
        return item  # type: ignore[return-value]

    def _work(self) -> None:
        try:
            while True:
                self._room.acquire()
                if self._closed:
                    return
                self._made.put((next(self._items), None))
        except BaseException as error:  # noqa: BLE001  # carried to whoever asks
            self._made.put((None, error))
