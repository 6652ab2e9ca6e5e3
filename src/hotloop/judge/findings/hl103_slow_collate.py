"""HL103: the collate function is slow

What it means. The step waits for data, and at least half of the time to make a batch goes into the
collate function: padding, stacking, converting, tokenizing a whole batch.

Evidence. `data_wait_fraction`: exposed waits over wall time; reported from 0.05. `collate_s` of
`fetch_s`: median seconds per batch in the collate function, and in all. `num_workers`. Making a batch
must take CPU time for more than half of that (else HL106), and workers be busy (else HL110).

Gain at most. `1 / (1 - data_wait_fraction x collate_s / fetch_s)`: a collate function that costs nothing.
With workers `1 / (1 - min(data_wait_fraction, collate_s / fetch_s))`: who keeps the pace then is not waited for.

Remedy. Make the function cheaper: build one array of the right size and fill it, instead of a tensor
per sample and `stack`; no Python loop over elements; what does not depend on the batch belongs into
the dataset. `loader_workers`: without workers the collating runs in the training process, with them it
runs beside it. To test it: time the function on one batch, then run the same steps with and without.

What can go wrong. Another way to pad changes batches, and so losses. Workers: see HL102.
"""

from __future__ import annotations

from hotloop.core.census import LoaderUse
from hotloop.judge.data_wait import why_waiting
from hotloop.judge.judged_run import Found, JudgedRun


def find(run: JudgedRun) -> Found | None:
    waiting = why_waiting(run)
    if waiting is None or waiting.cause != "collate" or waiting.loader is None:
        return None
    loader = waiting.loader
    beside = "" if loader.num_workers else " With num_workers >= 1 it runs beside the training."
    return Found(
        share=_share(waiting.share, loader),
        site=loader.collate_site or loader.site,
        evidence={
            "data_wait_fraction": waiting.share,
            "collate_s": loader.collate_s,
            "fetch_s": loader.fetch_s,
            "num_workers": loader.num_workers,
        },
        optimization="loader_workers",
        advice="Fill one tensor per batch instead of stacking one per sample, without Python loops "
        "over elements." + beside,
    )


def _share(waited: float, loader: LoaderUse) -> float:
    """The most of the step that goes with the collate function."""
    if loader.collate_s is None or not loader.fetch_s:
        return waited
    part = min(loader.collate_s / loader.fetch_s, 1.0)
    return min(waited, part) if loader.num_workers else waited * part
