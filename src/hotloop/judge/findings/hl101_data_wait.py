"""HL101: the step waits for data

What it means. The training process stands still until the next batch is ready. While it waits the
model computes nothing, so every second of it is lost. Why the batch is late could not be told; where
it can, another finding names it (HL102 to HL106, HL109, HL110).

Evidence. `data_wait_fraction`: seconds in the phase `data_wait` over wall seconds, waits for the first
batch of an epoch left out where they are known; on an accelerator at most the share in which it idled;
reported from 0.05, with workers from 0.1 and only where other programs do not fill the machine.
`num_workers`: workers of the loader, where it was seen.

Gain at most. `1 / (1 - data_wait_fraction)`: the step without any wait. Reached when workers prepare a
batch in less time than the rest of the step takes and a core is free for them; with fewer cores the
preparation takes its time from the training instead.

Remedy. `loader_workers`: prepare batches in worker processes while the model computes. Where workers
run already, more of them, cheaper transforms, or data that is prepared once and stored. To test it:
change `num_workers`, run as many steps again, and compare the seconds per step of several such pairs.

What can go wrong. Workers cost memory (one copy of the dataset each, with spawn) and time to start.
Randomness drawn in the main process moves into the workers: the batches, and the losses, change.
More workers than free cores make it slower. Very cheap batches cost more to send than to make.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import gain_without, is_foreign, lines_of
from hotloop.judge.waiting import why_waiting

CODE = "HL101"
TITLE = "The step waits for data"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    waiting = why_waiting(measurement, breakdown)
    if waiting is None or waiting.cause != "unknown":
        return None
    census = measurement.census
    settings = census.loader if census is not None else {}
    workers = waiting.loader.num_workers if waiting.loader else settings.get("num_workers")
    site = waiting.loader.site if waiting.loader else settings.get("site")
    if site is None and (lines := lines_of(census, "data_wait")):
        site = lines[0].site
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(waiting.share),
        site=site if isinstance(site, str) else None,
        evidence={
            "data_wait_fraction": waiting.share,
            "num_workers": workers if isinstance(workers, int) else None,
        },
        advice=_advice(workers, foreign=is_foreign(census)),
    )


def _advice(workers: object, *, foreign: bool) -> str:
    if workers:
        return (
            f"{workers} workers run and batches are still late. Try twice as many, then "
            "prefetch_factor=4, and look at what the dataset does in them."
        )
    if foreign and workers is None:
        return "Make batches in a DataLoader with num_workers >= 1 while the model computes."
    return "Prepare batches in worker processes while the model computes."
