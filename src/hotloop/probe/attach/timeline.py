"""How long a device was at work in the profiled steps, and how long communication was all that happened.

On a GPU: what ran on the device, whatever stream it ran on. On a CPU the collectives of `gloo` run on
threads of their own; while an operation of torch runs on any other thread, they are hidden by it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Span = tuple[int, int]
"""(begin, end) in nanoseconds."""
_ON_THREADS = ("gloo:", "mpi:", "ucc:")
_KERNELS = ("nccl", "rccl")
_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_NO_WORK = ("Stream Wait", "Event Sync", "Context Sync", "Stream Sync")
"""In a torch that does not tell the activity's type, synchronizing is listed among what the device did."""


def is_communication(event: Any) -> bool:
    """A collective on threads of its own: no operation of the thread that steps."""
    return event.name().startswith(_ON_THREADS)  # type: ignore[no-any-return]


def device_seconds(events: Iterable[Any], index: int | None) -> tuple[float, float] | None:
    """(at work, of that in communication that nothing hid) of one GPU; `None` where it did nothing.

    events: those of devices. index: which GPU; `None`: all of them.
    """
    spans: dict[bool, list[Span]] = {True: [], False: []}
    for event in events:
        if (index is not None and event.device_index() != index) or not _is_work(event):
            continue
        spans[event.name().lower().startswith(_KERNELS)].append(_span(event))
    both = length([*spans[True], *spans[False]])
    return (both / 1e9, (both - length(spans[False])) / 1e9) if any(spans.values()) else None


def thread_seconds(events: Sequence[Any]) -> float | None:
    """In collectives while no other operation ran, on the CPU; `None` where none was seen."""
    computing = [_span(each) for each in events if each.name().startswith("aten::")]
    communicating = [_span(each) for each in events if is_communication(each)]
    if not communicating:
        return None
    return (length([*computing, *communicating]) - length(computing)) / 1e9


def _span(event: Any) -> Span:
    return event.start_ns(), event.start_ns() + event.duration_ns()


def length(spans: list[Span]) -> int:
    """Length of their union."""
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


STARTED_IN_NS = 100_000
"""Python's part of an operation: the time since the last one ended, up to this much."""


@dataclass(slots=True)
class _Done:
    """An operation that nothing called, before it is known whether autograd made a node of it."""

    end: int
    took: int
    number: int
    """How many nodes its thread had made when it began; -1 without gradients."""


def depended_on_ns(events: Sequence[Any], between: Sequence[Span], *, updates_by_hand: bool) -> int:
    """Nanoseconds of operations between the phases that the loss or the weights depend on, with Python's part of each.

    A loss written out, an inner update of meta-learning (`w - lr * g`), the updates of a loop without an
    optimizer: they compute, though no module is called. A metric is other: nothing that is learned comes of it.

    events: the profiler's, of one thread, in the order in which they began. between: in that order too.
    updates_by_hand: no optimizer of torch updates the weights, so what works in place does.
    """
    begins = [begin for begin, _ in between]
    total, end = 0, 0
    done: _Done | None = None
    before = 0
    for event in events:
        name, start, number = event.name(), event.start_ns(), event.sequence_nr()
        is_operation = name.startswith("aten::")
        if done is not None and start >= done.end and is_operation and number >= 0:
            # The next operation tells: its thread has made more nodes since.
            if number > done.number >= 0:
                total += done.took
            done = None
        if start < end:
            continue
        took = event.duration_ns() + min(start - end, STARTED_IN_NS)
        end = start + event.duration_ns()
        if not is_operation or not _is_in(start, between, begins):
            before = 0
        elif updates_by_hand and name.endswith("_"):
            total += before + took  # `weight -= rate * slope` is two
            before = 0
        else:
            done = _Done(end, took, number)
            before = took if number < 0 else 0
    return total


def _is_in(moment: int, spans: Sequence[Span], begins: Sequence[int]) -> bool:
    place = bisect_right(begins, moment) - 1
    return place >= 0 and moment < spans[place][1]
