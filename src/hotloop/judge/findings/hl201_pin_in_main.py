"""HL201: batches are pinned by the process that trains

What it means. `pin_memory=True` without workers: each batch is copied into pinned memory by the
training process itself, between the steps. (With workers a thread does it beside the training.)

Evidence. `pinning_fraction`: seconds of pinning over wall time, exposed; reported from 0.01. `pin_s`:
median seconds per batch. `num_workers`: 0.

Gain at most. `1 / (1 - pinning_fraction)`: no pinning at all.

Remedy. `pin_memory`: with at least one worker (`num_workers=1`) a thread pins; or leave it out
(pytorch's tutorial on pinned memory: `tensor.pin_memory().to(device)` can take twice as long as
`tensor.to(device)`). On a CPU it brings nothing at all. To test it: the same steps without it.

What can go wrong. Copies from memory that is not pinned stop the host until they are done (HL202).
"""

from __future__ import annotations

from hotloop.judge.data_wait import pinning_share
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import PINNING


def find(run: JudgedRun) -> Found | None:
    share = run.exposed(pinning_share(run))
    loader = run.loader
    if share < PINNING or loader is None:
        return None
    return Found(
        share=share,
        site=loader.site,
        evidence={
            "pinning_fraction": share,
            "pin_s": loader.pin_s,
            "num_workers": loader.num_workers,
            "batch_bytes": loader.batch_bytes,
        },
        optimization="loader_workers",
        advice="Give the loader num_workers=1 or more, so that a thread pins beside the training, or "
        "set pin_memory=False.",
    )
