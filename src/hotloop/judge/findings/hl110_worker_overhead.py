"""HL110: workers cost more than they bring

What it means. Making a batch takes a worker less time than the training waits for it: what is paid is
the way from one process to the other. Usual for data that is already in memory.

Evidence. `wait_s`, the median wait of the training for a batch, above 1.5 times `fetch_s`, the median
time in which a worker makes one, on a machine that other programs do not fill: there a batch may only wait
for its turn. `overhead_fraction`: the
share of wall time that waits take beyond making the batches; reported from 0.05. `in_memory`: the
dataset is tensors or arrays.

Gain at most. `1 / (1 - overhead_fraction)`, `overhead_fraction = W (1 - fetch_s / wait_s)` with `W` the
exposed waits: the training makes each batch itself, in the worker's time for it, and nothing has to be
sent (pytorch 181501, Lightning 17410 report such cases). Where workers and training share CPUs it also
gets those back, which this does not count.

Remedy. `loader_workers`: `num_workers=0`. By hand, better still: whole batches by index (`__getitems__`). To test it: the
same steps with and without workers, in turns, at least four pairs.

What can go wrong. Randomness of the dataset moves from the workers into the main process: other
batches, other losses. A dataset that gets slower later needs its workers back.
"""

from __future__ import annotations

from hotloop.judge.data_wait import why_waiting
from hotloop.judge.judged_run import Found, JudgedRun


def find(run: JudgedRun) -> Found | None:
    waiting = why_waiting(run)
    if waiting is None or waiting.cause != "overhead" or waiting.loader is None:
        return None
    loader = waiting.loader
    return Found(
        share=waiting.share,
        site=loader.site,
        evidence={
            "overhead_fraction": waiting.share,
            "wait_s": loader.wait_s,
            "fetch_s": loader.fetch_s,
            "num_workers": loader.num_workers,
            "in_memory": None if loader.in_memory is None else str(loader.in_memory),
            "workers_busy": waiting.workers_busy,
        },
        optimization="loader_workers",
        advice="Try num_workers=0. By hand, better still: a dataset that fetches whole batches by index "
        "(`__getitems__`) instead of sample by sample.",
    )
