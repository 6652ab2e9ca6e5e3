"""How long a device was at work in the profiled steps, and how long communication was all that happened.

On a GPU: what ran on the device, whatever stream it ran on. On a CPU the collectives of `gloo` run on
threads of their own; while an operation of torch runs on any other thread, they are hidden by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Span = tuple[int, int]
"""(begin, end) in nanoseconds."""
_ON_THREADS = ("gloo:", "mpi:", "ucc:")
_KERNELS = ("nccl", "rccl")
_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_NO_WORK = ("Stream Wait", "Event Sync", "Context Sync", "Stream Sync")
"""Of torch before it tells the activity's type: synchronizing is listed among what the device did."""


def is_communication(event: Any) -> bool:
    """A collective on threads of its own: no operation of the thread that steps."""
    return event.name().startswith(_ON_THREADS)  # type: ignore[no-any-return]


def device_seconds(events: Iterable[Any], index: int | None) -> tuple[float, float] | None:
    """(at work, of that in communication that nothing hid) of one GPU; `None` where it did nothing.

    events: those of devices. index: which GPU; `None`: all of them.
    """
    computing: list[Span] = []
    communicating: list[Span] = []
    for event in events:
        if (index is not None and event.device_index() != index) or not _is_work(event):
            continue
        span = (event.start_ns(), event.start_ns() + event.duration_ns())
        name = event.name().lower()
        (communicating if name.startswith(_KERNELS) else computing).append(span)
    if not computing and not communicating:
        return None
    alone = length(computing)
    both = length([*computing, *communicating])
    return both / 1e9, (both - alone) / 1e9


def thread_seconds(events: Iterable[Any]) -> float | None:
    """In collectives while no other operation ran, on the CPU; `None` where none was seen."""
    computing: list[Span] = []
    communicating: list[Span] = []
    for event in events:
        span = (event.start_ns(), event.start_ns() + event.duration_ns())
        if is_communication(event):
            communicating.append(span)
        elif event.name().startswith("aten::"):
            computing.append(span)
    if not communicating:
        return None
    return (length([*computing, *communicating]) - length(computing)) / 1e9


def length(spans: list[Span]) -> int:
    """Of their union."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total


def _is_work(event: Any) -> bool:
    if event.is_user_annotation():
        return False
    told = getattr(event, "activity_type", None)
    if told is not None:
        return told() in _WORK
    return not event.name().startswith(_NO_WORK)
