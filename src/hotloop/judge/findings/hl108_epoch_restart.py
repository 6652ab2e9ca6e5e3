"""HL108: every epoch begins with a pause

What it means. The first batch of an epoch takes several times as long as the others: the loader ends
its workers with each epoch and starts new ones, which import, open files and fill their queues anew.

Evidence. `first_wait_s` against `median_wait_s`: seconds waited in steps that began an epoch, and in
the others; reported from 5 times as long and `restart_fraction` 0.03 of all time, over whole epochs.
`epochs_seen`; `num_workers`; `persistent_workers`.

Gain at most. `1 / (1 - restart_fraction)`, `restart_fraction = E / (E + N S)` with `E` the first wait
beyond a usual one, `N` steps of `S` seconds per epoch. In all steps together, not in the median step.

Remedy. `persistent_workers=True`: workers live on.
Without workers: what the dataset does in `__iter__` or the sampler at the start of an epoch, done once. To test
it: run over at least two epoch boundaries with and without, and compare the whole time.

`loader_workers` sets it where nothing of the dataset was seen to change between epochs; workers that live on do not see
what the script changes there later. Without workers there is no fix.

What can go wrong. The order of samples from the second epoch on differs (torch draws one number less),
so losses do, although nothing is wrong. State that the dataset keeps in a worker lives on, too.
"""

from __future__ import annotations

from hotloop.judge.data_wait import restarts
from hotloop.judge.judged_run import Found, JudgedRun


def find(run: JudgedRun) -> Found | None:
    found = restarts(run)
    if found is None:
        return None
    loader = run.loader
    starts_anew = loader is not None and loader.num_workers and not loader.persistent_workers
    return Found(
        share=found.share,
        site=loader.site if loader is not None else None,
        evidence={
            "restart_fraction": found.share,
            "first_wait_s": found.first_wait_s,
            "median_wait_s": found.median_wait_s,
            "epochs_seen": found.num_seen,
            "num_workers": loader.num_workers if loader is not None else None,
            "persistent_workers": str(loader.persistent_workers) if loader is not None else None,
        },
        advice="Set persistent_workers=True, where the script changes nothing of the dataset between "
        "epochs: workers are started once. Shuffling then draws other numbers from the second epoch on."
        if starts_anew
        else "Do once what the dataset or sampler does at the start of each epoch.",
        optimization="loader_workers"
        if starts_anew and loader is not None and loader.changes_between_epochs is False
        else None,
    )
