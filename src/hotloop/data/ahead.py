"""An iterator that works ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """The same items and the same exception, made in a thread that is up to `depth` items ahead.

    The thread ends when the items do, or soon after the caller lets go of the iterator.
    """
    made: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[T | None, BaseException | None, bool]) -> bool:
        while not stopped.is_set():
            try:
                made.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item, None, False)):
                    return
            put((None, None, True))
        except BaseException as error:  # noqa: BLE001 - raised again where the items are used
            put((None, error, True))

    thread = threading.Thread(target=work, name="hotloop-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error, last = made.get()
            if error is not None:
                raise error
            if last:
                return
            yield item  # type: ignore[misc]  # only the last entry holds no item
    finally:
        stopped.set()
        thread.join()
