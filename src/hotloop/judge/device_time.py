"""What the device did, from its clock and from what torch's profiler saw of a few steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hotloop.core.census import Census
from hotloop.core.step import StepRecord

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
