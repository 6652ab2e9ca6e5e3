"""Which part of the host's time could be saved: shares, and the part that is exposed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hotloop.core.census import CallUse, Census, CollectionUse, LineUse
from hotloop.core.judgement import Breakdown
from hotloop.core.measurement import Measurement
from hotloop.core.step import StepRecord
from hotloop.judge.attribute import STARTING_UP, under_way
from hotloop.judge.thresholds import ENOUGH_S, ENOUGH_STEPS, MOST


def runs_on_cpu(measurement: Measurement) -> bool:
    """Whether the model ran on the CPU, as seen; without a census, as its records look."""
    census = measurement.census
    if census is not None and census.device is not None:
        return census.device.startswith("cpu")
    return measurement.environment.device == measurement.environment.cpu_model


def is_foreign(census: Census | None) -> bool:
    """Whether this is somebody else's script: hotloop's own trainer says how it loads."""
    return census is not None and not census.loader


def is_short(breakdown: Breakdown) -> bool:
    """Whether too little was counted to promise a gain."""
    return breakdown.counted_steps < ENOUGH_STEPS or breakdown.counted_wall_s < ENOUGH_S


def exposed(measurement: Measurement, breakdown: Breakdown, share: float) -> float | None:
    """The part of a host wait that cost time: at most the share in which the device idled.

    On a CPU all of it: the waiting thread computes nothing. `None` on an accelerator without clocks,
    where a wait of the host can not be told from a busy device.
    """
    if runs_on_cpu(measurement):
        return min(share, MOST)
    if breakdown.device is None:
        return None
    return min(share, breakdown.device.get("idle", 0.0), MOST)


def exposed_phase(measurement: Measurement, breakdown: Breakdown, phase: str) -> float:
    """As `exposed`, of a phase; 0 where that can not be said."""
    return exposed(measurement, breakdown, breakdown.fractions.get(phase, 0.0)) or 0.0


def gain_without(share: float) -> float:
    """Ratio that a step gains when this share of it goes: `1 / (1 - share)`."""
    return 1 / (1 - min(max(share, 0.0), MOST))


def share_of_wall(breakdown: Breakdown, seconds: float) -> float:
    """Seconds of the census over the wall time of the steps that they were counted in."""
    return seconds / breakdown.counted_wall_s if breakdown.counted_wall_s > 0 else 0.0


def seconds_of(calls: Iterable[CallUse]) -> float:
    return math.fsum(call.seconds for call in calls)


def costliest(calls: Sequence[CallUse]) -> CallUse | None:
    return max(calls, key=lambda call: (call.seconds, call.num), default=None)


def lines_of(census: Census | None, phase: str) -> tuple[LineUse, ...]:
    """Lines that the host was on in a phase, most often first."""
    lines = census.lines if census is not None else ()
    return tuple(sorted((x for x in lines if x.phase == phase), key=lambda x: -x.fraction))


def site_of(calls: Sequence[CallUse], census: Census | None, phase: str) -> str | None:
    """The place of the costliest of `calls`; where none has one, the line where the host was most seen in `phase`."""
    call = costliest([each for each in calls if each.site])
    if call is not None:
        return call.site
    lines = lines_of(census, phase)
    return lines[0].site if lines else None


_INSTALLED = re.compile(r"[/\\\\](?:site-packages|dist-packages|lib[/\\\\]python3\.\d+)[/\\\\]")


def is_installed(site: str) -> bool:
    """Whether a place is in installed code, which its user does not change."""
    return _INSTALLED.search(site) is not None


@dataclass(frozen=True, slots=True)
class Recurring:
    """What comes every N steps."""

    share: float
    num: int
    """Steps with it."""
    every: float
    """Steps from one to the next."""


def recurring(measurement: Measurement, phase: str) -> Recurring | None:
    """The share of something that does not come in every step.

    From the step after its first time to its last: whole intervals, so that where the measured steps
    began or ended does not matter. A run that ended by itself counts whole. `None` for one time alone:
    how often it comes is not known then.
    """
    steps = under_way(measurement.records, after_profiler=True)
    highest = max((record.host.get(phase, 0.0) for record in steps), default=0.0)
    if highest <= 0:
        return None
    times = [i for i, r in enumerate(steps) if r.host.get(phase, 0.0) >= highest / 10]
    every = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else float(len(steps))
    if measurement.returncode == 0:
        return Recurring(_share(steps, phase), len(times), every)
    if len(times) < 2:
        return None
    return Recurring(_share(steps[times[0] + 1 : times[-1] + 1], phase), len(times), every)


def _share(steps: Sequence[StepRecord], phase: str) -> float:
    wall = math.fsum(record.wall_s for record in steps)
    return math.fsum(r.host.get(phase, 0.0) for r in steps) / wall if wall > 0 else 0.0


def cpus_of(measurement: Measurement) -> float | None:
    """CPUs for one of the processes: those on one machine share them. `None` where it is not known how
    many of several processes that is."""
    census = measurement.census
    cpus = census.cpus if census is not None and census.cpus else measurement.environment.cpu_quota
    ranks = (census.num_ranks or 1) if census is not None else 1
    local = census.num_local_ranks if census is not None else None
    if ranks > 1 and not local:
        return None
    return cpus / (local or 1)


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
