"""HL703: logging takes time in the loop

What it means. Printing, progress bars and loggers write from the training thread, and the step waits.

Evidence. `logging_fraction`: exposed seconds of it over wall time (on an accelerator at most the share
in which it idled); reported from 0.01. `calls_per_step`; `what`: the costliest. `set_by`: the argument of a Trainer
around the loop that sets how often it writes that, as it is (`logging_steps=1`); of hotloop's own trainer, which
logs every step, the settings of what it sends to.

Gain at most. `1 / (1 - logging_fraction)`: no logging. Writing `k` times more rarely brings at most
`1 / (1 - logging_fraction (1 - 1/k))`: `gain_half_as_often`, `gain_tenth_as_often`. These are computed, not
measured: each line is taken to cost the same.

Remedy. `log_interval`: write every ten or hundred steps; histograms and images rarer still; collect
values on the device and read them together. To test it: the same steps without;
`fewer_logs` does that for a moment and is never kept.

No fix. Which lines are needed is the author's choice. `fewer_logs` shows what they cost.

What can go wrong. Curves have fewer points.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun, costliest
from hotloop.judge.less_often import less_often
from hotloop.judge.thresholds import LOGGING


def find(run: JudgedRun) -> Found | None:
    share, sends = run.exposed_phase("logging"), run.census.how_often.get("logging")
    if share < LOGGING:
        return None
    if not run.is_foreign:  # hotloop's own trainer, which logs every step, or to nobody
        advice = f"Turn off what nobody reads: {sends}."
        return Found(share=share, evidence={"logging_fraction": share, "set_by": sends}, advice=advice) if sends else None  # fmt: skip
    call = costliest(run.census.logs)
    fewer, sentence = less_often(run, "logging", share, seen=None, call=call)
    return Found(
        share=share,
        site=run.site_of(run.census.logs, "logging"),
        evidence={
            "logging_fraction": share,
            "calls_per_step": sum(log.num for log in run.census.logs) / run.breakdown.counted_steps,
            "what": call.what if call is not None else None,
            **fewer,
        },
        advice=f"Write every ten or hundred steps only.{sentence}",
    )
