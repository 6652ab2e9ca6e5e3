"""Host wall time per phase, in seconds, over the steps under way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from hotloop.core.census import Census
from hotloop.core.judgement import Breakdown
from hotloop.core.step import HOST_PHASES, StepRecord


def steady(records: Sequence[StepRecord]) -> tuple[StepRecord, ...]:
    """Steps like their neighbours: those without any tag but `spike`, which takes no time.

    What a typical step takes. Where a training's time goes is another question: `under_way`.
    """
    return tuple(record for record in records if not set(record.tags) - {"spike"})


AFTER_PROFILER = "after_profiler"
STARTING_UP = frozenset({"warmup", "compile", "resumed", "profiled", AFTER_PROFILER})
"""Tags of steps that say nothing about a training that is under way."""


def under_way(
    records: Sequence[StepRecord], *, after_profiler: bool = False
) -> tuple[StepRecord, ...]:
    """Steps of a training under way: evaluating, saving and collecting garbage are part of it.

    after_profiler: with those that the profiler made faster, for what comes too rarely to do without.
    """
    left_out = STARTING_UP - {AFTER_PROFILER} if after_profiler else STARTING_UP
    return tuple(record for record in records if left_out.isdisjoint(record.tags))


def attribute(
    records: Sequence[StepRecord],
    *,
    census: Census | None = None,
    counted: Sequence[StepRecord] | None = None,
) -> Breakdown:
    """Fractions of host wall time over the steps under way that carry phases.

    `fraction(phase) = sum of its seconds / sum of wall seconds`. `unattributed` is a phase measured
    by the probe like any other; what the phases miss of wall time, or count twice, is
    `closure_error_fraction = sum over steps of |sum of phases - wall| / sum of wall`, absolute per
    step so that too much here does not hide too little there. Probe overhead is
    `sum of clock_reads * clock_read_s / sum of wall`, in wall the steps that were left out, too. census: tells
    what the phases and the device's clock alone do not. counted: the steps that it counted in, where they are others.
    Raises `ValueError` for no such step, an unknown phase, or seconds that are negative or not finite.
    """
    steps = [record for record in under_way(records) if record.host]
    if not steps:
        raise ValueError("no step under way carries phases")
    seconds = dict.fromkeys(HOST_PHASES, 0.0)
    missed = 0.0
    for record in steps:
        if not (math.isfinite(record.wall_s) and record.wall_s > 0):
            raise ValueError(f"step {record.step} took {record.wall_s} s")
        for phase, value in record.host.items():
            if phase not in seconds:
                raise ValueError(f"unknown phase {phase!r} in step {record.step}")
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"phase {phase!r} of step {record.step} took {value} s")
            seconds[phase] += value
        missed += abs(math.fsum(record.host.values()) - record.wall_s)
    wall = math.fsum(record.wall_s for record in steps)
    present = {phase for record in steps for phase in record.host} | {"unattributed"}
    reads = sum(record.clock_reads for record in steps)
    passed = wall + math.fsum(record.left_out_s or 0.0 for record in steps)
    read_s = census.clock_read_s if census is not None else None
    counted = steps if counted is None else counted
    return Breakdown(
        fractions=host_shares(
            {phase: seconds[phase] / wall for phase in HOST_PHASES if phase in present}, census
        ),
        median_s=median([record.wall_s for record in steps]),
        num_steps=len(steps),
        closure_error_fraction=missed / wall,
        probe_overhead_fraction=None if read_s is None else reads * read_s / passed,
        wall_s=wall,
        counted_steps=len(counted),
        counted_wall_s=math.fsum(record.wall_s for record in counted),
        device=device_shares(under_way(records), census),
    )


LITTLE = 0.02
"""Share of device time that may be unknown, and then counts as computing; less than any limit on idling."""


def device_shares(
    records: Sequence[StepRecord], census: Census | None = None
) -> dict[str, float] | None:
    """Fractions of device time. `None` where the device has no clock, or where its idling is not known.

    What the events leave `unknown` is kernels with gaps between them. Kernels take as long under the
    profiler as without it, so of the steps that are like those that it saw, what is not kernels was
    idling; of the others' unknown time the same part. Raises `ValueError` for damaged times.
    """
    totals = _totals(records)
    whole = math.fsum(totals.values())
    if whole <= 0:
        return None
    unknown = totals.pop("unknown", 0.0)
    if unknown > LITTLE * whole:
        part = _idle_part(records, census)
        if part is None:
            return None
        totals["idle"] = totals.get("idle", 0.0) + part * unknown
        unknown -= part * unknown
    if unknown:
        totals["compute"] = totals.get("compute", 0.0) + unknown
    if census is not None and census.profiled_communication_s is not None:
        seconds = census.profiled_communication_s * sum(bool(r.device) for r in records)
        _move(totals, seconds, "compute", "communication")
    return {phase: value / whole for phase, value in totals.items()}


def host_shares(fractions: Mapping[str, float], census: Census | None) -> dict[str, float]:
    """On a CPU, with the waits for other processes that a pass backward holds in `grad_sync`.

    DistributedDataParallel sends and waits inside of it; the profiler sees both. Its steps may have
    taken longer than others, so the share counts, not the seconds.
    """
    shares = dict(fractions)
    if census is None or not (census.device or "").startswith("cpu"):
        return shares
    if census.profiled_communication_s and census.profiled_step_s:
        share = census.profiled_communication_s / census.profiled_step_s
        _move(shares, share, "backward", "grad_sync")
    return shares


def _idle_part(records: Sequence[StepRecord], census: Census | None) -> float | None:
    """The part of what is unknown in which the device idled."""
    if census is None or census.profiled_busy_s is None:
        return None
    usual = [r for r in records if r.device and not set(r.tags) - {"spike", "epoch", "gc"}]
    totals = _totals(usual)
    unknown = totals.get("unknown", 0.0)
    if unknown <= 0:
        return None
    idle = math.fsum(totals.values()) - census.profiled_busy_s * len(usual)
    return min(max((idle - totals.get("idle", 0.0)) / unknown, 0.0), 1.0)


def _totals(records: Sequence[StepRecord]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for record in records:
        for phase, value in (record.device or {}).items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"device phase {phase!r} of step {record.step} took {value} s")
            totals[phase] = totals.get(phase, 0.0) + value
    return totals


def _move(amounts: dict[str, float], wanted: float, source: str, target: str) -> None:
    """Give `target` as much of `source` as it lacks to have what is wanted."""
    lacks = min(max(wanted - amounts.get(target, 0.0), 0.0), amounts.get(source, 0.0))
    if lacks > 0:
        amounts[source] -= lacks
        amounts[target] = amounts.get(target, 0.0) + lacks
