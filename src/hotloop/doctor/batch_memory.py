"""Whether the batches that loader workers have ready fit into /dev/shm and into the memory that is free.

A worker puts its batches into /dev/shm, where each lies until the training has used it, or a thread has pinned it. The queue is full
whenever the training does something else for a while: it starts, evaluates or saves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.census import Census, LoaderUse
from hotloop.core.memory_use import read_memory_notes
from hotloop.doctor.directory import TRIALS, begun_value
from hotloop.hardware.limits import memory_left_bytes, shared_memory_left_bytes
from hotloop.optimizations.loader_workers import batches_ahead
from hotloop.optimizations.optimization import BatchesAhead, Optimization
from hotloop.report.numbers import counted, size

CLEARLY = 1.1
"""Times what is free: batches differ, and so does what else is running."""
HANDED_OVER = 2
"""Batches that are in /dev/shm at a time at least where a thread pins them: workers begin together."""


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """What was seen of the batches and processes of an examined run, and what is free now: what is not known refuses nothing."""

    census: Census
    loader: LoaderUse
    """That trains; its `batch_bytes` are known."""
    given: BatchesAhead
    """By the command as it is."""
    directory: Path
    """Of the examined run."""
    shared_left: int | None
    left: int | None

    def fitting(self, technique: Optimization, value: Any) -> tuple[Any, str]:
        """`value`, or the largest below it that fits and is more than the command has, and why; `value` where none is. What was
        begun here stays."""
        ahead_of = technique.batches_ahead
        ahead = ahead_of(self.census, value) if ahead_of is not None else None
        if ahead_of is None or ahead is None or technique.smaller is None:
            return value, ""
        smaller, reason = technique.smaller(value), self.reason_too_large(ahead)
        if (begun := begun_value(self.directory, technique.name, value)) in smaller:
            return begun, f"{begun}, not {value}: its trials were begun so"
        for each in smaller if reason is not None else ():
            ahead = ahead_of(self.census, each)
            more = ahead is not None and ahead.workers > self.given.workers
            if ahead and more and self.reason_too_large(ahead, above=1 / CLEARLY) is None:
                return each, f"{each}, not {value}: {reason}"
        return value, ""

    def reason_not_tried(self, technique: Optimization, value: Any) -> str | None:
        """`None`: nothing that is known speaks against it, or it has trials here."""
        ahead_of = technique.batches_ahead
        ahead = ahead_of(self.census, value) if ahead_of is not None else None
        if ahead is None or (self.directory / TRIALS / technique.name).exists():
            return None
        return self.reason_too_large(ahead)

    def reason_too_large(
        self, ahead: BatchesAhead, larger: float = 1.0, above: float = CLEARLY
    ) -> str | None:
        """Why such a queue takes more than is free, where that of the command does not. larger: times the bytes of a batch. above:
        times what is free."""
        queue, given = self._queue(ahead, larger), self._queue(self.given)
        if queue <= given:
            return None
        less = "fewer workers or batches ahead"
        left, needed = self.shared_left, self._shared(ahead, larger)
        # A command that runs although it should not has batches that go another way.
        if left is not None and needed > above * left and self._shared(self.given) <= left:
            gigabytes = 2 ** max(math.ceil(math.log2(CLEARLY * needed / 2**30)), 0)
            return (
                f"its batches need about {size(round(needed))} of /dev/shm ({self._words(ahead, larger)}), {size(left)} is there: "
                f"`docker run --shm-size={gigabytes}g`, or {less}"
            )
        process, left = self.census.host_peak_bytes or 0, self.left
        workers = max((note.workers_bytes for note in read_memory_notes(self.directory)), default=0)
        # Other processes that the script starts are among them: without workers nothing is known of one.
        num_workers = sum(loader.num_workers for loader in self.census.loaders)
        each = min(workers / num_workers, process) if num_workers else 0.0
        now = self._num_ranks * (process + workers) + given
        needed = now + queue - given + self._num_ranks * each * (ahead.workers - self.given.workers)
        if not process or left is None or needed <= above * left or now > left:
            return None
        of_workers = f"{size(round(each))} for each worker, " if each else ""
        return (
            f"with it the command needs about {size(round(needed))} of memory ({of_workers}{size(round(queue))} for batches), "
            f"{size(left)} is free: {less}"
        )

    def _words(self, ahead: BatchesAhead, larger: float) -> str:
        each = f"of {size(round((self.loader.batch_bytes or 0) * larger))}"
        ranks = f" in each of {self._num_ranks} processes" if self._num_ranks > 1 else ""
        if self._is_pinned:
            return f"{min(HANDED_OVER, ahead.workers)} batches {each} at a time{ranks}"
        if (whole := self._of_epoch(larger)) <= ahead.batches:
            return f"an epoch's {math.ceil(whole)} batches {each}{ranks}"
        factor = ahead.batches // ahead.workers
        workers, batches = counted(ahead.workers, "worker"), counted(factor, "batch", "batches")
        return f"{workers} x {batches} {each}, and the one in use{ranks}"

    def _shared(self, ahead: BatchesAhead, larger: float = 1.0) -> float:
        """Bytes in /dev/shm when the queue is full."""
        if self._is_pinned:
            return self._bytes(min(HANDED_OVER, ahead.workers), larger)
        return self._queue(ahead, larger)

    def _queue(self, ahead: BatchesAhead, larger: float = 1.0) -> float:
        """Bytes of a full queue and the batch in use, of all processes that train."""
        return self._bytes(ahead.batches + 1 if ahead.workers else 0, larger)

    def _bytes(self, batches: int, larger: float) -> float:
        num = self._num_ranks * min(batches, self._of_epoch(larger))
        return num * (self.loader.batch_bytes or 0) * larger

    def _of_epoch(self, larger: float) -> float:
        """Its batches, beyond which no queue reaches."""
        return self.loader.per_epoch / larger if self.loader.per_epoch else math.inf

    @property
    def _is_pinned(self) -> bool:
        """By a thread, which torch starts where there is an accelerator."""
        return self.loader.pin_memory and self.census.device != "cpu"

    @property
    def _num_ranks(self) -> int:
        return self.census.num_local_ranks or 1


def batch_memory(census: Census | None, directory: Path) -> BatchMemory | None:
    """`None` where the batches of the loader that trains were not seen."""
    loader = census.slowest_loader() if census is not None else None
    given = batches_ahead(census) if census is not None else None
    if census is None or loader is None or given is None or not loader.batch_bytes:
        return None
    left = shared_memory_left_bytes(), memory_left_bytes()
    return BatchMemory(census, loader, given, directory, *left)
