"""HL102: batches are made one by one between the steps

What it means. The loader has no workers (`num_workers=0`): the process that trains makes every batch
itself, and the model computes nothing meanwhile. Most of that time is the dataset's own code.

Evidence. `data_wait_fraction`: exposed waits over wall time (on an accelerator at most the share in
which it idled); reported from 0.05. `fetch_s`, `collate_s`: median seconds to make one batch, and the
part in the collate function. `fetch_cpu_fraction`: CPU over wall seconds meanwhile; above 0.5, so it
computes and waits neither for a disk (HL106) nor for its turn. `cpus_busy_fraction`: how much of all its
CPUs the process used. `in_memory`: the dataset is tensors or arrays.
Site: the DataLoader's (`loader_site`); the dataset's (`dataset_site`) where that is to change.

Gain at most. `1 / (1 - data_wait_fraction)`: the step without any wait. `n` workers bring it to
`max(S - W, t / n)` with step `S`, wait `W` and `t` to make a batch (DS-Analyzer, VLDB 2021), as far as
free CPUs go round.

Remedy. `loader_workers`: `num_workers` = `suggested_workers`. Samples
that are only picked from memory (below 50 us each) cost least where a batch is picked at once:
`whole_batches` does that for a TensorDataset, a `__getitems__` for a dataset of your own. To test it: the
same number of steps with and without, in turns, at least four pairs.

What can go wrong. Random numbers that the dataset or collate function draws (`draws_random`) come from the workers then:
the same samples in the same order, augmented with other numbers, so losses change as with another seed; the doctor proves
that nothing else does (`other_draws`). Each worker holds the dataset. Scripts whose main part is
not under `if __name__ == "__main__"` run again in workers that are spawned.
"""

from __future__ import annotations

from hotloop.core.census import LoaderUse
from hotloop.judge.data_wait import why_waiting
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import TRIVIAL_SAMPLE_S
from hotloop.judge.worker_count import more_workers


def find(run: JudgedRun) -> Found | None:
    waiting = why_waiting(run)
    if waiting is None or waiting.cause != "serial" or waiting.loader is None:
        return None
    loader = waiting.loader
    workers = more_workers(run.census)
    try_workers = f"Try num_workers={workers}" if workers else "Try loader workers"
    trivial = is_trivial(loader)
    if trivial:
        advice = (
            "The data is in memory: pick a batch at once (`__getitems__`, or index the tensors with a list) "
            "instead of sample by sample."
        )
    elif loader.iterable:
        advice = (
            f"{try_workers}; an IterableDataset must then give "
            "each worker its own part (torch.utils.data.get_worker_info), or samples come twice."
        )
    else:
        advice = f"{try_workers} in this DataLoader."
    if loader.draws_random and not trivial:
        advice += (
            " Its random numbers will then come from the workers: the same samples in the same order, augmented with other "
            "numbers, so losses change as with another seed."
        )
    return Found(
        share=waiting.share,
        site=loader.dataset_site or loader.site if trivial else loader.site,
        evidence={
            "data_wait_fraction": waiting.share,
            "num_workers": 0,
            "suggested_workers": None if trivial else workers,
            "fetch_s": loader.fetch_s,
            "collate_s": loader.collate_s,
            "fetch_cpu_fraction": loader.fetch_cpu_fraction,
            "cpus_busy_fraction": waiting.cpus_busy,
            "in_memory": None if loader.in_memory is None else str(loader.in_memory),
            "loader_site": loader.site,
            "dataset_site": loader.dataset_site,
        },
        optimization="whole_batches" if trivial and loader.stacks_tensors else "loader_workers",
        advice=advice,
    )


def is_trivial(loader: LoaderUse) -> bool:
    """Whether its samples are only picked from memory: sending one takes as long as picking it."""
    if not loader.in_memory or loader.fetch_s is None or not loader.batch_size:
        return False
    return loader.fetch_s / loader.batch_size < TRIVIAL_SAMPLE_S
