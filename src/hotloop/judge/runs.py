"""What one process contributes to a comparison: its seconds per unit of work, two ways."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hotloop.core.errors import UsageError
from hotloop.core.measurement import Measurement
from hotloop.core.step import StepRecord

Unit = Literal["token", "sample", "step", "work"]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """One process."""

    unit: Unit
    steady_s: float
    """Median of seconds per unit of work."""
    all_in_s: float
    """Total seconds over total work."""
    num_counted: int


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
        work = [_work(r, unit) for r in counted]
        places = [f"step {r.step}" for r in counted]
    elif measurement.samples and not measurement.records:
        unit = "work"
        seconds = [s.value for s in measurement.samples]
        work = [s.work for s in measurement.samples]
        places = [f"sample {number}" for number in range(len(seconds))]
    else:
        return None
    for value, done, place in zip(seconds, work, places):
        for what, number in (("time", value), ("work", done)):
            if not (math.isfinite(number) and number > 0):
                raise UsageError(
                    f"the {what} of {place} is {number}, not a positive number",
                    where=f"a measurement of `{measurement.arm}`",
                    do="measure this run again",
                )
    per_work = np.asarray(seconds, dtype=float) / np.asarray(work, dtype=float)
    return RunTimes(unit, float(np.median(per_work)), sum(seconds) / sum(work), len(seconds))


def _work(record: StepRecord, unit: Unit) -> float:
    amount = {"token": record.tokens, "sample": record.samples}.get(unit, 1)
    assert amount is not None  # `unit_of` has checked every record
    return float(amount)
