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

from hotloop.core.census import CallUse
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import SYNC_IDLE, SYNCS_PER_STEP


def find(run: JudgedRun) -> Found | None:
    calls = [sync for sync in run.census.syncs if not from_nan_filter(sync)]
    advice = "Keep the value on the device (`total += loss.detach()`) and read it every hundred steps only."
    what = ", ".join(sorted({call.what for call in calls}))
    site = run.site_of(calls, "sync")
    return judged(run, calls, site, advice, sync_fraction=run.host("sync"), calls=what)


def judged(
    run: JudgedRun, waits: Sequence[CallUse], site: str | None, advice: str, **more: float | str
) -> Found | None:
    """What they cost, with `more` evidence of them; `None` where that is nothing."""
    per_step, idle = (
        sum(call.num for call in waits) / run.breakdown.counted_steps,
        run.device("idle"),
    )
    if run.on_cpu or per_step < SYNCS_PER_STEP or idle < SYNC_IDLE:
        return None
    return Found(
        share=idle,
        gain_is_loose=run.exposed_phase("data_wait") >= idle / 2,
        site=site,
        evidence={"syncs_per_step": per_step, "idle_fraction": idle, **more},
        advice=advice,
    )


def from_nan_filter(sync: CallUse) -> bool:
    """`logging_nan_inf_filter` of the Hugging Face Trainer asks each loss whether it is a number."""
    return "bool" in sync.what and (sync.inside or "").startswith("transformers.trainer")
