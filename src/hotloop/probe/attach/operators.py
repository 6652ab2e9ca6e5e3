"""Which operations ran: of a few steps, as torch's profiler saw them, and of one forward, as it was dispatched.

How long a device was at work, and how long communication was all that happened: on a GPU by what ran on the device,
whatever stream it ran on. On a CPU the collectives of `gloo` run on threads of their own; while an operation of torch
runs on any other thread, they are hidden by it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.core.census import FILLED, OperatorUse

Span = tuple[int, int]
"""(begin, end) in nanoseconds."""
KEPT = 60
MAX_EVENTS = 400_000
"""More would take many seconds to sum."""
_MATRIX = ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "mkldnn_linear")
_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (*_MATRIX, "_scaled_mm", "convolution", "mkldnn_convolution", "_grouped_mm")
)
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "long int": "int64", "long": "int64", "int": "int32", "signed char": "int8",
    "unsigned char": "uint8", "bool": "bool", "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}  # fmt: skip
_ALLOCATING = ("aten::empty", "aten::resize_")
_SDPA = "_scaled_dot_product_"
_OF_THE_PROFILER = frozenset({
    "Activity Buffer Request", "Buffer Flush", "Command Buffer Full", "Instrumentation", "Resource", "Unknown",
    "Lazy Function Loading", "Runtime Triggered Module Loading",
})  # fmt: skip
"""What it spends, and CUDA's loading of kernels: told on the host, with numbers of their own that are operations', too."""
_COMPILED = "Torch-Compiled Region"
"""Begins the name under which dynamo runs what it compiled."""
_ON_THREADS = ("gloo:", "mpi:", "ucc:")
_KERNELS = ("nccl", "rccl")
_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_NO_WORK = ("Stream Wait", "Event Sync", "Context Sync", "Stream Sync")
"""In a torch that does not tell the activity's type, synchronizing is listed among what the device did."""
STARTED_IN_NS = 20_000
"""Python's part of an operation: the time since the last one ended, up to this much. What takes longer is the script's own
code beside it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Over all profiled steps together."""

    operators: tuple[OperatorUse, ...] = ()
    matmul_dtypes: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    step_s: float | None = None
    """Wall seconds of a step."""
    wait_s: float | None = None
    """Of these, waiting for data."""
    busy_s: float | None = None
    """Per step: a GPU was at work."""
    communication_s: float | None = None
    """Per step: in communication that nothing hid; `None` where none was seen on a CPU, or no GPU."""
    computing_between_s: float | None = None
    """Per step: in operations between the phases that the loss or the weights depend on."""
    runs_compiled: bool | None = None
    """Code that torch.compile made was among it."""


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
    dtypes: set[tuple[str, str]] = set()
    attention: set[str] = set()
    threads: dict[int, list[Any]] = defaultdict(list)
    device, on_host = [], []
    whole, runs_compiled = True, False
    for number, event in enumerate(events):
        if number >= MAX_EVENTS:
            whole = False
            break
        if event.name() in _OF_THE_PROFILER:
            continue
        if event.device_type().name == "CPU":
            on_host.append(event)
            runs_compiled |= event.name().startswith(_COMPILED)
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
    for event in filter(_is_work, device):
        found = by_correlation.get(event.linked_correlation_id())
        (found or sums[event.name(), None]).device_ns += event.duration_ns()
    busy = device_seconds(device, device_index) if whole else None
    alone = busy[1] if busy is not None else thread_seconds(on_host) if whole else None
    return Seen(
        _operators(sums, num_steps),
        tuple(sorted({_computed_in(dtype, of, device_index) for dtype, of in dtypes})),
        tuple(sorted(attention)),
        busy_s=busy[0] / num_steps if busy is not None else None,
        communication_s=alone / num_steps if alone is not None else None,
        computing_between_s=depended_on / 1e9 / num_steps if whole else None,
        runs_compiled=runs_compiled if runs_compiled or whole else None,
    )


def _nest(
    events: list[Any],
    sums: dict[tuple[str, str | None], _Sum],
    by_correlation: dict[int, _Sum],
    dtypes: set[tuple[str, str]],
    attention: set[str],
) -> None:
    """Gives each its own time: without what it called."""
    stack: list[_Open] = []
    fused = 0  # until when an attention that torch decomposes is under way
    for event in events:
        name, start, duration = event.name(), event.start_ns(), event.duration_ns()
        dtype = next((_DTYPES[each] for each in event.dtypes() if each in _DTYPES), None)
        while stack and stack[-1].end <= start:
            stack.pop()
        if stack:
            stack[-1].sum.self_ns -= duration
            if name == "aten::fill_" and stack[-1].name.startswith(_ALLOCATING):
                name = FILLED
        found = sums[name, dtype]
        found.num += 1
        found.self_ns += duration
        if not event.linked_correlation_id() and not name.startswith("cu"):
            by_correlation[event.correlation_id()] = (
                found  # calls of CUDA have numbers of their own
            )
        stack.append(_Open(start + duration, found, name))
        if name in _PRODUCTS and dtype:
            dtypes.add((dtype, "conv" if "convolution" in name else "matmul"))
        elif name.startswith("aten::_scaled_dot_product_"):
            attention.add(f"sdpa:{_backend(name)}")
            fused = max(fused, start + duration)
            if dtype:
                dtypes.add((dtype, "matmul"))
        elif name == "aten::_softmax" and start >= fused:
            shapes = event.shapes()
            if shapes and len(shapes[0]) == 4:  # (batch, heads, queries, keys)
                attention.add("plain")


def _computed_in(dtype: str, of: str, device_index: int | None) -> str:
    """float32 that the GPU rounds to tf32 as it multiplies: torch does so in convolutions unless it is told not to."""
    if dtype != "float32" or device_index is None:
        return dtype
    cudnn = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    switch = cudnn if of == "conv" else torch.backends.cuda.matmul
    able = torch.version.hip is None and torch.cuda.get_device_capability(device_index) >= (8, 0)
    return "tf32" if able and switch.fp32_precision == "tf32" else dtype


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


def _backend(name: str) -> str:
    """`flash` of `aten::_scaled_dot_product_flash_attention_for_cpu_backward`."""
    middle = name.removeprefix("aten::").removeprefix(_SDPA).removesuffix("_backward")
    for end in ("_for_cpu", "_for_mps"):
        middle = middle.removesuffix(end)
    return middle.removesuffix("_attention").removeprefix("attention_")


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
        place = bisect_right(begins, start) - 1
        if not is_operation or place < 0 or start >= between[place][1]:
            before = 0
        elif updates_by_hand and name.endswith("_"):
            total += before + took  # `weight -= rate * slope` is two
            before = 0
        else:
            done = _Done(end, took, number)
            before = took if number < 0 else 0
    return total


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that reaches the dispatcher, below autocast. Far too slow for a step."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: set[str] = set()
        self.attention: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name == "linear" or name in _MATRIX:
            self.dtypes.add(str(args[-1].dtype).removeprefix("torch."))
        elif name.startswith(_SDPA):
            self.attention.add(f"sdpa:{_backend(name)}")
            self.dtypes.add(str(args[0].dtype).removeprefix("torch."))
        elif name == "_softmax":
            self.attention.add("plain")
        return func(*args, **(kwargs or {}))


def watch_forward(forward: Callable[[], Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Run `forward` once, eagerly, and return `(product dtypes, attention)` as they were dispatched.

    Random states are put back, so that the run that follows is the same as without this. A softmax
    outside a fused attention is attention written out, or SDPA's math fallback: torch decomposes that
    one before it can be told apart.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices), _Dispatched() as seen:
        forward()
    return tuple(sorted(seen.dtypes)), tuple(sorted(seen.attention))
