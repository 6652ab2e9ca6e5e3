"""The device's time by torch's CUDA events: recorded where the host's phase changes, read steps later.

Nothing here waits for the device, and nothing is asked while a graph is captured. Run on an H100, torch 2.11.

How idling is told. An event is recorded at each edge between the host's phases. The device comes to it
once it has done what was submitted before, so between the events of two edges it does what the host
submitted between those edges, and nothing else: what lies between them on its clock, it computed or idled.

- In a phase that waits (data, sync, logging, saving) the host submits nothing: all of it is idling.
  Around copies it is copying, around collectives communicating (the stream waits for them).
- Elsewhere, at the later edge the event of the earlier one is queried. Where it has not passed, the
  device was still at older work when all of the new work was there: it never idled between the two.
- Where it has passed, the device may have idled from then on, up to the later edge: kernels came one by
  one with gaps between them, or none came at all. Events cannot tell these apart, so that span is
  `unknown`. What the device did after the later edge, it computed. When that edge was, on the device's
  clock: an event on an empty queue passes at once, so the smallest difference of both clocks over the
  events of a step is their offset. Where no queue was empty the offset comes out too large, and with it
  `unknown`, never `idle`.

`unknown` is the most that the device can have idled beyond `idle`. How much of it was kernels the judge
tells from the seconds that the device was at work in a step, as torch's profiler saw them; else nobody.
Work on other streams has no events here: a span in which another stream was current is `unknown` whole.
Steps that are left out have none either: the first one after them begins with an event of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

UNKNOWN = "unknown"
KINDS = {
    "data_wait": "idle",
    "sync": "idle",
    "logging": "idle",
    "checkpoint": "idle",
    "host_to_device": "memcpy",
    "grad_sync": "communication",
    "eval": "compute",
}
"""By phase, what the device does meanwhile; of the gaps between the kernels of an evaluation
nothing is said."""
MAX_EDGES = 64
"""Edges of one step; an event costs the host about 2 us. What follows them is one span."""
SHORTEST_S = 50e-6
"""Two edges between which the host submits work may be one where they are so close."""
MAX_WAITING = 256
"""Steps whose events have not passed; a host so far ahead of its device is not timed by it."""
_stream_handle: Callable[[int], int] = getattr(
    torch._C,
    "_cuda_getCurrentRawStream",
    lambda index: torch.cuda.current_stream(index).cuda_stream,
)
"""The number of the stream that is current on a device: `current_stream` makes an object each time, once per edge."""


@dataclass(slots=True)
class Edge:
    """The end of one span and the beginning of the next one."""

    event: Any
    host_s: float
    drained: bool
    """Here, the event of the edge before had passed; asked only after a span of `unknown` kind."""
    kind: str
    """The kind of the span that begins."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The events of one step, all on one stream."""

    edges: Sequence[Edge]
    """Two at least; the last is also the first one of the next step."""

    def passed(self) -> bool:
        """Whether the device has come to its end."""
        return bool(self.edges[-1].event.query())  # a stream comes to its events in their order

    def seconds(self) -> dict[str, float]:
        """By device phase, and `unknown`. Only once it has passed."""
        first = self.edges[0].event
        at = [0.0, *(first.elapsed_time(edge.event) / 1000.0 for edge in self.edges[1:])]
        offset = min(own - edge.host_s for own, edge in zip(at, self.edges))
        found = {"compute": 0.0, "communication": 0.0, "memcpy": 0.0, "idle": 0.0, UNKNOWN: 0.0}
        for begin, edge, end, later in zip(at, self.edges, at[1:], self.edges[1:]):
            length = max(end - begin, 0.0)
            if edge.kind != UNKNOWN:
                found[edge.kind] += length
                continue
            told = later.host_s + offset - begin if later.drained else 0.0
            unknown = min(max(told, 0.0), length)
            found[UNKNOWN] += unknown
            found["compute"] += length - unknown
        return found

    def events(self) -> list[Any]:
        """Those that no other step uses."""
        return [edge.event for edge in self.edges[:-1]]


class DeviceClock:
    """Records events at the edges of phases. Raises nothing: after an error it is silent."""

    def __init__(
        self, device: torch.device, opened: Sequence[str], failed: Callable[[str], None]
    ) -> None:
        """opened: the phases that are open on the host's clock, outermost first; always the same list."""
        self.device = device
        self._opened = opened
        self._failed = failed
        self._pool: deque[Any] = deque()
        self._edges: list[Edge] = []
        self._stream: Any = None
        self._handle: int | None = None  # of that stream
        self._full = False
        self._retries_before: int | None = None
        self.active = True
        self.own_s = 0.0
        """What it cost the host so far, outside of the probe's other work: that is told with all in it."""

    def edge(self, depth: int, *, is_told: bool = False) -> None:
        """A phase has been opened, or those from `depth` on are about to be closed. is_told: within other work of the probe."""
        before = self.own_s
        self._edge(depth)
        if is_told:
            self.own_s = before

    def is_free(self) -> bool:
        """Whether the device may be asked anything: neither is another stream current, nor a graph captured."""
        if self._handle is not None and _stream_handle(self.device.index) != self._handle:
            return False
        return not torch.cuda.is_current_stream_capturing()

    def cut(self) -> DeviceStep | None:
        """A step ends, or those that were left out; `None` where it has no events: the first one, one that ends on another stream."""
        if not self.active:
            return None
        edges, self._edges, self._full = self._edges, [], False
        last = None
        try:
            if not torch.cuda.is_current_stream_capturing():
                handle = _stream_handle(self.device.index)
                if handle != self._handle:
                    edges, self._handle = [], handle
                    self._stream = torch.cuda.current_stream(self.device)
                last = self._recorded(edges, time.perf_counter(), self._kind(len(self._opened)))
        except Exception as error:  # noqa: BLE001 - an error of the device is the script's to see
            self._fail(error)
        if last is None:
            return None
        self._edges = [last]
        return DeviceStep((*edges, last)) if edges else None

    def give_back(self, step: DeviceStep) -> None:
        """Its events have been read."""
        self._pool.extend(step.events())

    def named(self) -> dict[str, Any]:
        """What the device is."""
        found = torch.cuda.get_device_properties(self.device)
        return {"device_name": found.name, "compute_capability": (found.major, found.minor)}

    def first_counted(self) -> None:
        """The warm-up is over."""
        self._retries_before = self._retries()

    def used(self) -> dict[str, Any]:
        """Fields of the census: the highest bytes so far, the allocator's retries over the counted steps."""
        found = torch.cuda.get_device_properties(self.device)
        uuid, before = getattr(found, "uuid", None), self._retries_before
        return {
            "device_uuid": uuid and f"GPU-{str(uuid).removeprefix('GPU-')}",
            "device_memory_bytes": found.total_memory,
            "alloc_retries": None if before is None else self._retries() - before,
            "device_allocated_bytes": torch.cuda.max_memory_allocated(self.device),
            "device_reserved_bytes": torch.cuda.max_memory_reserved(self.device),
        }

    def _retries(self) -> int:
        return int(torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0))

    def _kind(self, depth: int) -> str:
        """The kind of what is open: inside a wait everything is part of that one."""
        for phase in self._opened[:depth]:
            kind = KINDS.get(phase)
            if kind is not None:
                return kind
        return UNKNOWN

    def _edge(self, depth: int) -> None:
        if not self._edges or not self.active:
            return
        before, kind, now = self._edges[-1], self._kind(depth), time.perf_counter()
        if self._full or (
            kind == before.kind and (kind != UNKNOWN or now - before.host_s < SHORTEST_S)
        ):
            if kind != before.kind:
                before.kind = UNKNOWN  # it continues past this edge
            return
        try:
            if len(self._edges) >= MAX_EDGES or not self.is_free():
                self._full = len(self._edges) >= MAX_EDGES
                before.kind = UNKNOWN
            else:
                self._edges.append(self._recorded(self._edges, now, kind))
        except Exception as error:  # noqa: BLE001 - an error of the device is the script's to see
            self._fail(error)
        self.own_s += time.perf_counter() - now

    def _recorded(self, edges: Sequence[Edge], now: float, kind: str) -> Edge:
        # Of a span of a known kind nobody asks.
        drained = bool(edges) and edges[-1].kind == UNKNOWN and bool(edges[-1].event.query())
        event: Any = (
            self._pool.popleft() if self._pool else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        )
        event.record(self._stream)
        return Edge(event, now, drained, kind)

    def _fail(self, error: Exception) -> None:
        self.active = False
        self._edges = []
        self._failed(f"no device times: {type(error).__name__}: {error}")
