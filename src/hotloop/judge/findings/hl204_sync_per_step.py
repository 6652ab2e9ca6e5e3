"""HL204: the host waits for the device in every step

What it means. `.item()`, `.cpu()`, `print(loss)`, `if loss > x` and the like wait until the device has
computed the value. Until then the host starts nothing new, so the device idles afterwards.

Evidence. `syncs_per_step`: such calls over counted steps, those for logging, saving and evaluating left
out; reported from 1. `idle_fraction`: share of device time without work; reported from 0.03 (XProf's
limit). `sync_fraction`: share of wall time that the host waited. On a CPU they cost nothing.

Gain at most. `1 / (1 - idle_fraction)`: the device never idles. Which part of the idling follows from
these waits only a trial shows, and where the step waits for data as well the bound is loose.

Remedy. Keep the value on the device (`total += loss.detach()`) and read it every hundred steps
(`log_interval`). To test it: comment the calls out for a few hundred steps;
`deferred_reads` does that for a moment and is never kept.

No fix. What the script does with the value in the same step (print, stop, skip) would change.
`deferred_reads` shows what reading costs.

What can go wrong. Code that decides on the value (early stopping, skipping bad batches) decides later.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.census import CallUse, Census
from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import exposed_phase, gain_without, runs_on_cpu, site_of
from hotloop.judge.thresholds import SYNC_IDLE, SYNCS_PER_STEP

CODE = "HL204"
TITLE = "The host waits for the device in every step"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    calls = [sync for sync in syncs_of(census) if not from_nan_filter(sync)]
    found = judged(measurement, breakdown, calls)
    if found is None or census is None:
        return None
    per_step, idle = found
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(idle),
        gain_is_loose=exposed_phase(measurement, breakdown, "data_wait") >= idle / 2,
        site=site_of(calls, census, "sync"),
        evidence={
            "syncs_per_step": per_step,
            "idle_fraction": idle,
            "sync_fraction": breakdown.fractions.get("sync", 0.0),
            "calls": ", ".join(sorted({call.what for call in calls})),
        },
        advice="Keep the value on the device (`total += loss.detach()`) and read it every hundred "
        "steps only.",
    )


def judged(
    measurement: Measurement, breakdown: Breakdown, calls: Sequence[CallUse]
) -> tuple[float, float] | None:
    """Calls per step and the idle share of the device; `None` where they cost nothing."""
    if runs_on_cpu(measurement) or breakdown.device is None or not breakdown.counted_steps:
        return None
    per_step = sum(call.num for call in calls) / breakdown.counted_steps
    idle = breakdown.device.get("idle", 0.0)
    return (per_step, idle) if per_step >= SYNCS_PER_STEP and idle >= SYNC_IDLE else None


def syncs_of(census: Census | None) -> tuple[CallUse, ...]:
    return census.syncs if census is not None else ()


def from_nan_filter(sync: CallUse) -> bool:
    """`logging_nan_inf_filter` of the Hugging Face Trainer asks each loss whether it is a number."""
    return "bool" in sync.what and (sync.inside or "").startswith("transformers.trainer")
