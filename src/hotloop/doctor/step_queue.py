"""How far loader workers run ahead of the steps, and how long a process must be to show what they keep up.

Workers fill a queue while the training does something slow: starting, compiling. Steps that are fed by it are
faster than any that follow. Counting begins after as many steps as the queue holds, and covers several queues.
Batches also come in waves, one of each worker at a time: over whole waves it does not matter where in a wave
the counting begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.loader_workers import batches_ahead
from hotloop.optimizations.optimization import BatchesAhead, Optimization

QUEUES = 3
"""Queues that the counted steps cover, where the run is long enough."""
LEAST_WAVES = 4
"""Waves that the counted steps have to cover, and one queue; with the usual two batches per worker these are two."""
START_STEPS = 3
"""The slow first ones, in which workers fill the queue."""


@dataclass(frozen=True, slots=True)
class StepQueue:
    """In steps of the training."""

    length: int = 0
    """Steps for which batches can be ready."""
    wave: int = 1
    """Steps that one batch of each worker feeds."""

    @property
    def warmup_steps(self) -> int:
        """Until what was made before is used up."""
        return START_STEPS + self.length if self.length else 0

    def counted(self, wanted: int, at_most: int) -> int | None:
        """About `wanted` steps or several queues, in whole waves; `None` where `at_most` are too few for that."""
        if not self.length:
            return min(wanted, at_most)
        several = max(wanted, QUEUES * self.length)
        waves = min(math.ceil(several / self.wave), at_most // self.wave)
        enough = waves >= LEAST_WAVES and waves * self.wave >= self.length
        return waves * self.wave if enough else None

    def fits(self, num_steps: int) -> bool:
        """Whether a run of so many steps shows what these workers keep up."""
        return self.counted(1, num_steps - self.warmup_steps) is not None


NO_QUEUE = StepQueue()


def queue_of(ahead: BatchesAhead, census: Census) -> StepQueue:
    """A step may take several batches."""
    per_step = census.batches_per_step()
    length, wave = (math.ceil(each / per_step) for each in (ahead.batches, ahead.workers))
    return StepQueue(length, max(wave, 1))


def script_queue(census: Census | None) -> StepQueue:
    """As the script has it."""
    ahead = batches_ahead(census) if census is not None else None
    return queue_of(ahead, census) if ahead is not None and census is not None else NO_QUEUE


def value_that_shows(technique: Optimization, value: Any, census: Census, num_steps: int) -> Any:
    """`value`, or the largest below it whose gain a run of so many steps can show; `value` where none can."""
    if technique.batches_ahead is None or technique.smaller is None:
        return value
    for each in (value, *technique.smaller(value)):
        ahead = technique.batches_ahead(census, each)
        if ahead is None or queue_of(ahead, census).fits(num_steps):
            return each
    return value
