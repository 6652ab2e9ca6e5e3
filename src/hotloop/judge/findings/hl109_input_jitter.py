"""HL109: some batches come late

What it means. The workers are fast enough on average, but single batches take long, and the training
waits for those: long samples, large files, a busy disk now and then.

Evidence. `late_fraction`: what waits took beyond the median one, exposed, over wall time; reported from
0.05. `wait_p99_s` at least 3 times `wait_s` (the median), and workers that are busy for less than 80 %
of their time (`workers_busy`), on a machine that other programs do not fill.

Gain at most. `1 / (1 - late_fraction)`: no batch comes later than usual.

Remedy. `prefetch`: `prefetch_factor` 4 to 8, so that a longer queue bridges a slow batch. Samples of
very different length: put similar ones into a batch. To test it: the same steps with both values, in
turns; compare the whole time, not the median step.

What can go wrong. The queue takes memory: workers x prefetch_factor x bytes of a batch.
"""

from __future__ import annotations

from hotloop.judge.data_wait import why_waiting
from hotloop.judge.judged_run import Found, JudgedRun


def find(run: JudgedRun) -> Found | None:
    waiting = why_waiting(run)
    if waiting is None or waiting.cause != "jitter" or waiting.loader is None:
        return None
    loader = waiting.loader
    return Found(
        share=waiting.share,
        site=loader.site,
        evidence={
            "late_fraction": waiting.share,
            "wait_s": loader.wait_s,
            "wait_p99_s": loader.wait_p99_s,
            "workers_busy": waiting.workers_busy,
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
        },
        optimization="prefetch",
        advice=f"Try prefetch_factor={max(4, 2 * (loader.prefetch_factor or 2))}; put samples of "
        "similar length into a batch.",
    )
