"""How much of the time of a training under way Python collects garbage."""

from __future__ import annotations

from hotloop.core.census import CollectionUse
from hotloop.core.judgement import Breakdown
from hotloop.core.measurement import Measurement
from hotloop.judge.attribute import STARTING_UP, under_way
from hotloop.judge.exposure import share_of_wall

FEWEST_FULL = 3
"""Full collections below which one more or less would decide what they cost."""


def collection_share(measurement: Measurement, breakdown: Breakdown) -> float:
    """The share of wall time in all collections; `full_share` is that in full ones alone.

    The census counted in more steps than are under way where a start was found only by its course: of
    full collections, which mark their steps, those of such a start are left out.
    """
    seen = measurement.census.collections if measurement.census is not None else None
    if seen is None:
        return 0.0
    young = share_of_wall(breakdown, max(seen.seconds - seen.full_s, 0.0))
    return young + full_share(measurement, breakdown)


def full_share(measurement: Measurement, breakdown: Breakdown) -> float:
    """The share of wall time in full collections."""
    seen = measurement.census.collections if measurement.census is not None else None
    if seen is None:
        return 0.0
    whole = share_of_wall(breakdown, seen.full_s)
    kept, start_s, left_out = _marked(measurement, breakdown)
    if not left_out:
        return whole
    under_way_s = breakdown.counted_wall_s - start_s
    return seen.full_s * kept / (kept + left_out) / under_way_s if under_way_s > 0 else whole


def few_full(seen: CollectionUse | None) -> bool:
    """Whether there were full collections, and too few to say what they cost."""
    return seen is not None and 0 < seen.num_full < FEWEST_FULL


def _marked(measurement: Measurement, breakdown: Breakdown) -> tuple[int, float, int]:
    """Steps with a full collection under way; seconds of the counted start, and such steps in it."""
    kept = under_way(measurement.records, after_profiler=True)
    others = STARTING_UP - {"warmup"}
    start = [r for r in measurement.records if "warmup" in r.tags and not others & set(r.tags)]
    start = start[len(start) - min(max(breakdown.counted_steps - len(kept), 0), len(start)) :]
    return (
        sum("gc" in record.tags for record in kept),
        sum(record.wall_s for record in start),
        sum("gc" in record.tags for record in start),
    )
