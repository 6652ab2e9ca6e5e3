"""What torch's profiler saw over a few steps, summed by operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.core.census import FILLED, OperatorUse
from hotloop.probe.attach.timeline import (
    Span,
    depended_on_ns,
    device_seconds,
    is_communication,
    thread_seconds,
)

KEPT = 60
MAX_EVENTS = 400_000
"""More would take many seconds to sum."""
_PRODUCTS = frozenset(
    "aten::" + name
    for name in ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "mkldnn_linear", "_scaled_mm",
                 "convolution", "mkldnn_convolution", "_grouped_mm")
)  # fmt: skip
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "long int": "int64", "long": "int64", "int": "int32", "signed char": "int8",
    "unsigned char": "uint8", "bool": "bool", "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}  # fmt: skip
_ALLOCATING = ("aten::empty", "aten::resize_")
_SDPA = "aten::_scaled_dot_product_"


@dataclass(frozen=True, slots=True)
class Seen:
    """Over all profiled steps together."""

    operators: tuple[OperatorUse, ...] = ()
    matmul_dtypes: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    busy_s: float | None = None
    """Per step: a GPU was at work."""
    communication_s: float | None = None
    """Per step: in communication that nothing hid; `None` where none was seen on a CPU, or no GPU."""
    computing_between_s: float | None = None
    """Per step: in operations between the phases that the loss or the weights depend on."""


@dataclass(slots=True)
class _Sum:
    num: int = 0
    self_ns: int = 0
    device_ns: int = 0


@dataclass(slots=True)
class _Open:
    """An operation that has begun and not ended, in the order of its thread."""

    end: int
    sum: _Sum
    name: str


def summed(
    events: Iterable[Any],
    num_steps: int,
    *,
    device_index: int | None = None,
    between: Sequence[Span] = (),
    updates_by_hand: bool = False,
) -> Seen:
    """From the profiler's raw events, which have begin, duration, thread and dtypes each.

    device_index: the GPU that trains, where others are used as well. between: when no phase was open, by the
    events' clock. updates_by_hand: no optimizer of torch updates the weights.
    """
    sums: dict[tuple[str, str | None], _Sum] = defaultdict(_Sum)
    dtypes: set[str] = set()
    attention: set[str] = set()
    threads: dict[int, list[Any]] = defaultdict(list)
    device, on_host = [], []
    whole = True
    for number, event in enumerate(events):
        if number >= MAX_EVENTS:
            whole = False
            break
        if event.device_type().name == "CPU":
            on_host.append(event)
            if not is_communication(event):
                threads[event.start_thread_id()].append(event)
        else:
            device.append(event)
    by_correlation: dict[int, _Sum] = {}
    depended_on = 0
    for own in threads.values():
        own.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
        depended_on += depended_on_ns(own, between, updates_by_hand=updates_by_hand)
        _nest(own, sums, by_correlation, dtypes, attention)
    for event in device:
        found = by_correlation.get(event.linked_correlation_id())
        (found or sums[event.name(), None]).device_ns += event.duration_ns()
    busy = device_seconds(device, device_index) if whole else None
    alone = busy[1] if busy is not None else thread_seconds(on_host) if whole else None
    return Seen(
        _operators(sums, num_steps),
        tuple(sorted(dtypes)),
        tuple(sorted(attention)),
        busy_s=busy[0] / num_steps if busy is not None else None,
        communication_s=alone / num_steps if alone is not None else None,
        computing_between_s=depended_on / 1e9 / num_steps if whole else None,
    )


def _nest(
    events: list[Any],
    sums: dict[tuple[str, str | None], _Sum],
    by_correlation: dict[int, _Sum],
    dtypes: set[str],
    attention: set[str],
) -> None:
    """Gives each its own time: without what it called."""
    stack: list[_Open] = []
    fused = 0  # until when an attention that torch decomposes is under way
    for event in events:
        name, start, duration = event.name(), event.start_ns(), event.duration_ns()
        dtype = _dtype(event)
        while stack and stack[-1].end <= start:
            stack.pop()
        if stack:
            stack[-1].sum.self_ns -= duration
            if name == "aten::fill_" and stack[-1].name.startswith(_ALLOCATING):
                name = FILLED
        found = sums[name, dtype]
        found.num += 1
        found.self_ns += duration
        by_correlation[event.correlation_id()] = found
        stack.append(_Open(start + duration, found, name))
        if name in _PRODUCTS and dtype:
            dtypes.add(dtype)
        elif name.startswith(_SDPA):
            attention.add(f"sdpa:{backend(name)}")
            fused = max(fused, start + duration)
            if dtype:
                dtypes.add(dtype)
        elif name == "aten::_softmax" and start >= fused and _is_attention(event):
            attention.add("plain")


def _is_attention(event: Any) -> bool:
    """A softmax over a four-dimensional tensor: (batch, heads, queries, keys)."""
    shapes = event.shapes()
    return bool(shapes) and len(shapes[0]) == 4


def _operators(sums: dict[tuple[str, str | None], _Sum], num_steps: int) -> tuple[OperatorUse, ...]:
    uses = [
        OperatorUse(
            name=name,
            dtype=dtype,
            num=found.num / num_steps,
            self_s=max(found.self_ns, 0) / 1e9 / num_steps,
            device_s=found.device_ns / 1e9 / num_steps,
        )
        for (name, dtype), found in sums.items()
    ]
    uses.sort(key=lambda use: -max(use.self_s, use.device_s))
    return tuple(uses[:KEPT])


def _dtype(event: Any) -> str | None:
    for name in event.dtypes():
        if name in _DTYPES:
            return _DTYPES[name]
    return None


def backend(name: str) -> str:
    """`flash` of `aten::_scaled_dot_product_flash_attention_for_cpu_backward`."""
    middle = (
        name.removeprefix("aten::").removeprefix("_scaled_dot_product_").removesuffix("_backward")
    )
    for end in ("_for_cpu", "_for_mps"):
        middle = middle.removesuffix(end)
    return middle.removesuffix("_attention").removeprefix("attention_")
