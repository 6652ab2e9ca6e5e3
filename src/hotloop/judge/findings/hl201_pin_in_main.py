"""HL201: batches are pinned in the process that trains

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

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.data_wait import pinning_share, training_loader
from hotloop.judge.exposure import exposed, gain_without
from hotloop.judge.thresholds import PINNING

CODE = "HL201"
TITLE = "Batches are pinned by the process that trains"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    share = exposed(measurement, breakdown, pinning_share(measurement, breakdown)) or 0.0
    loader = training_loader(measurement.census)
    if share < PINNING or loader is None:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(share),
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
