"""What one process contributes to a comparison: its seconds per unit of work, two ways."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from hotloop.core.errors import UsageError
from hotloop.core.measurement import Measurement
from hotloop.core.step import StepRecord

Unit = Literal["token", "sample", "step", "work"]

LEAST_FROM_QUEUE, LEAST_SHORTER = 0.05, 2.0
"""Share of the batches taken, and batches, by which a queue of ready ones has to become shorter to count."""
LEAST_MAKING = 0.25
"""Share of the counted steps in which workers had something to make, below which all are looked at."""
RARE = 3.0
"""Steps of more than so many times the median hold something else than a step: an evaluation, a save."""
MOST_FROM_QUEUE = 0.75
"""Beyond it the few batches that were made meanwhile do not tell how fast they are made."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """One process."""

    unit: Unit
    steady_s: float
    """Median of seconds per unit of work."""
    all_in_s: float
    """Total seconds over total work."""
    num_counted: int
    rare_s: float = 0.0
    """What steps that are `RARE` times the median take beyond it, per unit of work of all steps."""
    from_queue: float = 0.0
    """Share of the batches of the counted steps that were made before them."""
    work: float = 1.0
    """Of all counted steps."""

    @property
    def lasting_fraction(self) -> float:
        """The pace that workers surely keep up, of that of all steps: they made so large a share of the batches that were
        taken. Too small where they had to stop because the queue was full."""
        return 1 - min(self.from_queue, MOST_FROM_QUEUE)


def unit_of(records: Iterable[StepRecord]) -> Unit:
    """`token` when every step says its tokens, else `sample` likewise, else `step`."""
    kept = tuple(records)
    if all(r.tokens is not None for r in kept):
        return "token"
    if all(r.samples is not None for r in kept):
        return "sample"
    return "step"


def run_times(measurement: Measurement) -> RunTimes | None:
    """Times of one process, or `None` when nothing in it may be counted.

    Raises `UsageError` for a time or an amount of work that is not a positive finite number: such a
    record is damaged, and a median would hide it.
    """
    counted = measurement.counted()
    unit: Unit
    if counted:
        unit = unit_of(counted)
        seconds = [r.wall_s for r in counted]
        work = _work(counted, unit)
    elif measurement.samples and not measurement.records:
        unit = "work"
        seconds = [s.value for s in measurement.samples]
        work = [s.work for s in measurement.samples]
    else:
        return None
    if not all(0 < value < math.inf for value in (*seconds, *work)):
        raise _damaged(measurement, seconds, work)
    steady_s = median(value / amount for value, amount in zip(seconds, work))
    typical = [steady_s * amount for amount in work]
    rare = [(value - each) * (value > RARE * each) for value, each in zip(seconds, typical)]
    compiled = {number for number, each in enumerate(counted) if "compile" in each.tags}
    total, rare_total = (_sum_without_compiling(compiled, each) for each in (seconds, rare))
    done = sum(work)
    from_queue = share_from_queue(measurement.records)
    return RunTimes(unit, steady_s, total / done, len(seconds), rare_total / done, from_queue, done)


def _damaged(
    measurement: Measurement, seconds: Sequence[float], work: Sequence[float]
) -> UsageError:
    """Names the first time or amount of work that is not a positive finite number."""
    counted = measurement.counted()
    places = [f"step {r.step}" for r in counted] or [f"sample {n}" for n in range(len(seconds))]
    what, place, number = next(
        (what, place, number)
        for value, done, place in zip(seconds, work, places)
        for what, number in (("time", value), ("work", done))
        if not (math.isfinite(number) and number > 0)
    )
    return UsageError(
        f"the {what} of {place} is {number}, not a positive number",
        where=f"a measurement of `{measurement.arm}`",
        do="measure this run again",
    )


def share_from_queue(records: Sequence[StepRecord]) -> float:
    """Share of the batches of the counted steps by which the queue of ready batches became shorter.

    0 where no loader has workers, where the queue grew or stayed about as long: between two batches it
    changes by some, which says nothing. At the end of an epoch, where nothing is left to be made, it becomes
    shorter however fast they are made: only steps before that are looked at, where there are enough.
    """
    counted = [each for each in records if "warmup" not in each.tags]
    taken = [each.batches_taken for each in counted if each.batches_taken is not None]
    ready = [each.batches_ready for each in counted if each.batches_ready is not None]
    if not counted or min(len(taken), len(ready)) < len(counted):
        return 0.0
    places = [place for place, each in enumerate(counted) if each.batches_to_come is not False]
    if len(places) < LEAST_MAKING * len(counted):
        places = list(range(len(counted)))
    seen = [ready[place] for place in places]
    # It is as long as before at the height of a wave, not at any moment.
    wave = _wave(seen)
    first = max(range(wave), key=lambda place: seen[place])
    last = max(range(len(seen) - wave, len(seen)), key=lambda place: (seen[place], place))
    between = sum(taken[places[first] + 1 : places[last] + 1])
    share = (seen[first] - seen[last]) / between if between else 0.0
    if share * sum(taken) < max(LEAST_SHORTER, LEAST_FROM_QUEUE * sum(taken)):
        return 0.0
    return min(share, 1.0)


def _wave(ready: Sequence[int]) -> int:
    """Steps from one delivery to the next where batches come in waves, one of each worker; else 1."""
    deliveries = [place for place in range(1, len(ready)) if ready[place] > ready[place - 1] + 1]
    if len(deliveries) < 2:
        return 1
    return math.ceil((deliveries[-1] - deliveries[0]) / (len(deliveries) - 1))


def _sum_without_compiling(compiled: Collection[int], seconds: Sequence[float]) -> float:
    """The sum over all steps; steps that compiled are taken for typical ones where none does so in the second half.

    What is compiled again and again costs in every stretch of a run; what is compiled once is a cost of the start.
    """
    if not compiled or max(compiled) >= len(seconds) // 2:
        return sum(seconds)
    others = [value for number, value in enumerate(seconds) if number not in compiled]
    return sum(others) * len(seconds) / len(others)


def _work(records: Sequence[StepRecord], unit: Unit) -> list[float]:
    if unit == "step":
        return [1.0] * len(records)
    amounts = [r.tokens if unit == "token" else r.samples for r in records]
    return [float(amount) for amount in amounts if amount is not None]  # `unit_of` checked all
