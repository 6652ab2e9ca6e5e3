"""The loader that trains: where it is made, how far its workers run ahead of the steps, and how long a process must be to
show what they keep up.

Workers fill a queue while the training does something slow: starting, compiling. Steps that are fed by it are
faster than any that follow. Counting begins after as many steps as the queue holds, and covers several queues.
Batches also come in waves, one of each worker at a time: over whole waves it does not matter where in a wave
the counting begins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.core.census import ONE_OF, Census
from hotloop.core.child import LOADER
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


def variables_for(
    census: Census | None, workdir: Path | None, edited: Mapping[str, bytes]
) -> dict[str, str]:
    """Variables that tell a trial where the loader that trains is made. edited: files that hold other lines there than in `workdir`."""
    loader = census.slowest_loader() if census is not None else None
    if loader is None or not loader.made or workdir is None:
        return {}
    moved = {file: _moved((workdir / file).read_bytes(), new) for file, new in edited.items()}
    made = [" < ".join(map(partial(_in, moved), name.split(" < "))) for name in loader.made]
    return {LOADER: json.dumps({"site": loader.site, "made": made, "workdir": str(workdir)})}


def _in(moved: Mapping[str, Mapping[int, int]], call: str) -> str:
    """`train.py:8`, or `train.py:8 #1`, by its line in the edited file."""
    place, mark, number = call.partition(ONE_OF)
    file, _, line = place.rpartition(":")
    if file not in moved:
        return call
    return f"{file}:{moved[file].get(int(line), int(line))}{mark}{number}"


def _moved(old: bytes, new: bytes) -> dict[int, int]:
    """Line -> the line that it has become, both counted from 1."""
    lines = old.splitlines(), new.splitlines()
    found: dict[int, int] = {}
    for _, begin, end, new_begin, new_end in SequenceMatcher(None, *lines, False).get_opcodes():
        for number in range(begin, min(end, begin + new_end - new_begin)):
            found[number + 1] = new_begin + number - begin + 1
    return found
