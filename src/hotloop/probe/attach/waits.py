"""Waits of the training for data that another thread or process makes, outside of any DataLoader.

A call that hands over tensors, arrays or bytes was a wait for data; what hands over anything else (a result of
saving, a number) stays what it was.
"""

from __future__ import annotations

import queue
from types import ModuleType
from typing import Any

import torch

from hotloop.probe import entry
from hotloop.probe.attach.watch import Watch
from hotloop.probe.imports import Action, after_import

SMALLEST_BYTES = 1024
"""A shorter message is rather a command or an answer than a batch."""
DEPTH = 3
LOOKED_AT = 16
"""Items of a list, a dict or an object."""


def watch_waits(watch: Watch) -> None:
    """Hook this process, and modules that it imports later."""

    def wait(original: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.clock.innermost != "unattributed" or watch.evaluates:
            return original(*args, **kwargs)
        depth = watch.enter("data_wait")
        if depth < 0:
            return original(*args, **kwargs)
        start = watch.clock.last
        try:
            found = original(*args, **kwargs)
        finally:
            watch.leave(depth)
        if not watch.tried(holds_data, found):
            watch.clock.move(watch.clock.last - start, "data_wait", "unattributed")
        return found

    def around(path: str, *names: str) -> Action:
        def hook(module: ModuleType) -> None:
            owner = getattr(module, path)
            for name in names:
                entry.around_call(owner, name, wait)

        return hook

    def pools(module: ModuleType) -> None:
        around("ApplyResult", "get")(module)
        around("IMapIterator", "next", "__next__")(module)

    entry.around_call(queue.Queue, "get", wait)
    queue.SimpleQueue = _open_to_hooks(queue.SimpleQueue)  # type: ignore[assignment,misc]
    entry.around_call(queue.SimpleQueue, "get", wait)
    after_import(
        {
            "multiprocessing.queues": around("Queue", "get"),
            "multiprocessing.connection": around("_ConnectionBase", "recv", "recv_bytes"),
            "multiprocessing.pool": pools,
            "concurrent.futures._base": around("Future", "result"),
        },
        lambda name, error: watch.note_now(f"not seen: {name}: {error}"),
    )


def _open_to_hooks(kind: type) -> type:
    """A subclass by the same name: C's own types take no other methods. Queues made before stay unseen."""
    return type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__})


def holds_data(value: Any, depth: int = DEPTH) -> bool:
    """Whether there is something in it that a model could be given."""
    if isinstance(value, torch.Tensor) or type(value).__name__ == "ndarray":
        return True
    if isinstance(value, (bytes, bytearray, memoryview)):
        return len(value) >= SMALLEST_BYTES
    if not depth or value is None or isinstance(value, (str, int, float, BaseException)):
        return False
    if isinstance(value, (list, tuple)):
        inner = list(value[:LOOKED_AT])
    else:
        held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        inner = list(held.values())[:LOOKED_AT]
    return any(holds_data(each, depth - 1) for each in inner)
