"""The device's time by torch's CUDA events: recorded around the host's waits, read steps later.

Nothing here waits for the device: an event is read only once `query()` says that it has passed, and
only on the thread that steps, at the end of a step (a query from another thread would spoil a graph
that is being captured). Not yet run on a GPU.

While the host waits it starts nothing, so what the device's queue did not fill between two events
around a wait, the device idled. Around copies it is copying, around collectives communicating. The
rest of a step counts as computing, the gaps between short kernels too: those the profiler tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

KINDS = {
    "data_wait": "idle",
    "sync": "idle",
    "logging": "idle",
    "checkpoint": "idle",
    "host_to_device": "memcpy",
    "grad_sync": "communication",
}
MAX_SPANS = 64
"""Of one step; an event costs the host about 2 us."""
MAX_WAITING = 256
"""Steps whose events have not passed; a host so far ahead of its device is not timed by it."""

Span = tuple[str, Any, Any]


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The events of one step."""

    first: Any
    last: Any
    spans: list[Span]
    complete: bool
    """No wait was left out."""

    def passed(self) -> bool:
        """Whether the device has come to its end."""
        return bool(self.last.query())

    def seconds(self) -> dict[str, float] | None:
        """By device phase. Only once it has passed."""
        if not self.complete:
            return None
        found = {"compute": 0.0, "communication": 0.0, "memcpy": 0.0, "idle": 0.0}
        for kind, begin, end in self.spans:
            found[kind] += begin.elapsed_time(end) / 1000.0
        whole = self.first.elapsed_time(self.last) / 1000.0
        found["compute"] = max(whole - sum(found.values()), 0.0)
        return found

    def events(self) -> list[Any]:
        """Those that no other step uses."""
        return [self.first, *(event for _, *pair in self.spans for event in pair)]


class DeviceClock:
    """Records events at the edges of waits. Raises nothing: after an error it is silent."""

    def __init__(self, device: torch.device, failed: Callable[[str], None]) -> None:
        self._device = device
        self._failed = failed
        self._pool: deque[Any] = deque()
        self._first: Any = None
        self._spans: list[Span] = []
        self._open: tuple[int, str, Any] | None = None
        self._complete = True
        self.active = True

    def enter(self, phase: str, depth: int) -> None:
        """A phase has been opened; inside another wait it is part of that one."""
        kind = KINDS.get(phase)
        if kind is None or self._open is not None or not self.active:
            return
        if len(self._spans) >= MAX_SPANS:
            self._complete = False
            return
        event = self._event()
        if event is not None:
            self._open = (depth, kind, event)

    def leave(self, depth: int) -> None:
        """It is about to be closed."""
        if self._open is None or self._open[0] < depth:
            return
        _, kind, begin = self._open
        self._open = None
        end = self._event()
        if end is not None:
            self._spans.append((kind, begin, end))

    def cut(self) -> DeviceStep | None:
        """A step ends; `None` where it has no events: the first one, one that is captured."""
        first, spans, complete = self._first, self._spans, self._complete
        self._spans, self._complete = [], self._open is None
        self._first = last = self._event() if self.active else None
        if first is None or last is None:
            return None
        return DeviceStep(first, last, spans, complete)

    def give_back(self, step: DeviceStep) -> None:
        """Its events have been read."""
        self._pool.extend(step.events())

    def _event(self) -> Any:
        """Recorded now on the current stream; `None` while a graph is captured, where none may be."""
        try:
            if torch.cuda.is_current_stream_capturing():
                return None
            event: Any = (
                self._pool.popleft() if self._pool else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            )
            event.record(torch.cuda.current_stream(self._device))
            return event
        except Exception as error:  # noqa: BLE001 - an error of the device is the script's to see
            self.active = False
            self._failed(f"no device times: {type(error).__name__}: {error}")
            return None
