"""Operations on tensors between the phases of training that the loss or the weights depend on.

A loss written out, an inner update of meta-learning (`w - lr * g`), the updates of a loop without an
optimizer: they compute, though no module is called. A metric is other: nothing that is learned comes of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.probe.attach.timeline import Span

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
    """Nanoseconds of them, with what Python took to start each.

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
