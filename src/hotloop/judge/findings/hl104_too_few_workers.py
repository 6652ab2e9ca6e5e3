"""HL104: too few workers make batches

What it means. The loader's workers make batches almost without a pause and the training still waits:
they are too few, and CPUs are free for more.

Evidence. `data_wait_fraction`: exposed waits over wall time; reported from 0.05. `workers_busy`: share
of their time in which the workers made batches, `fetch_s x batches / (num_workers x wall)`; 0.8 and
more. `cpus_busy_fraction`: share of the CPUs this process may use; below 0.85 (loadtune's limit for saturated),
or not known and fewer workers than CPUs.

Gain at most. `1 / (1 - data_wait_fraction)`: the step without any wait. With `n` workers a step takes
`max(S - W, t / n)`, step `S`, wait `W`, `t` seconds to make a step's batches.

Remedy. `loader_workers`: `num_workers` = `suggested_workers`. To test it: the same steps with both
numbers, in turns, at least four pairs.

What can go wrong. Each worker holds the dataset and `prefetch_factor` batches in memory. Batches and
losses stay the same with a map-style dataset that draws its randomness per sample; otherwise not.
"""

from __future__ import annotations

import math

from hotloop.judge.data_wait import why_waiting
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.worker_count import more_workers


def find(run: JudgedRun) -> Found | None:
    waiting = why_waiting(run)
    if waiting is None or waiting.cause != "too_few_workers" or waiting.loader is None:
        return None
    loader = waiting.loader
    assert loader.fetch_s is not None
    assert waiting.step_s
    assert waiting.batches_per_step is not None
    rest_s = waiting.step_s * (1 - waiting.share)
    needed = math.ceil(loader.fetch_s * waiting.batches_per_step / rest_s - 1e-9)
    workers, cpus = more_workers(run.census), run.cpus
    advice = []
    if workers is not None:
        advice.append(f"Try num_workers={workers} instead of {loader.num_workers}.")
    if cpus is not None and max(needed, loader.num_workers + 1) > cpus:
        advice.append(f"Only {cpus:g} CPUs may be used: cheaper samples help further.")
    return Found(
        share=waiting.share,
        site=loader.site,
        evidence={
            "data_wait_fraction": waiting.share,
            "num_workers": loader.num_workers,
            "suggested_workers": workers,
            "workers_busy": waiting.workers_busy,
            "cpus_busy_fraction": waiting.cpus_busy,
            "fetch_s": loader.fetch_s,
            "dataset_site": loader.dataset_site,
        },
        optimization="loader_workers",
        advice=" ".join(advice) or "Make samples cheaper.",
    )
