"""HL101: the step waits for data

What it means. The training process stands still until the next batch is ready. While it waits the
model computes nothing, so every second of it is lost.

Evidence. `data_wait_fraction`: seconds in the phase `data_wait` over wall seconds, steady steps only;
reported from 0.05. `num_workers`: workers of the loader, where it was seen.

Gain at most. `1 / (1 - data_wait_fraction)`: the step without any wait. Reached when workers prepare a
batch in less time than the rest of the step takes and a core is free for them; with fewer cores the
preparation takes its time from the training instead.

Remedy. `loader_workers`: prepare batches in worker processes while the model computes. Where workers
run already, more of them, cheaper transforms, or data that is prepared once and stored.

What can go wrong. Workers cost memory (one copy of the dataset each, with spawn) and time to start.
Randomness drawn in the main process moves into the workers: the batches, and the losses, change.
More workers than free cores make it slower. Very cheap batches cost more to send than to make.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement

CODE = "HL101"
TITLE = "The step waits for data"
THRESHOLD = 0.05
"""Below this share a perfect loader gains about what two runs differ by anyway."""


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    wait = breakdown.fractions.get("data_wait", 0.0)
    if not THRESHOLD <= wait < 1:
        return None
    census = measurement.census
    loader = census.loader if census is not None else {}
    workers = loader.get("num_workers")
    site = loader.get("site")
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=1 / (1 - wait),
        site=site if isinstance(site, str) else None,
        evidence={
            "data_wait_fraction": wait,
            "num_workers": workers if isinstance(workers, int) else None,
        },
        optimization="loader_workers",
        advice="Prepare batches in worker processes while the model computes.",
    )
