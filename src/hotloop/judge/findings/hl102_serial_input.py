"""HL102: batches are made one by one between the steps

What it means. The loader has no workers (`num_workers=0`): the process that trains makes every batch
itself, and the model computes nothing meanwhile. Most of that time is the dataset's own code.

Evidence. `data_wait_fraction`: exposed waits over wall time (on an accelerator at most the share in
which it idled); reported from 0.05. `fetch_s`, `collate_s`: median seconds to make one batch, and the
part in the collate function. `fetch_cpu_fraction`: CPU over wall seconds meanwhile; above 0.5, so it
computes and waits neither for a disk (HL106) nor for its turn. `cpus_busy_fraction`: how much of all its
CPUs the process used. `in_memory`: the dataset is tensors or arrays.
Site: the line that makes samples slow, where one takes 2 ms and five looks or more, and a third of all, saw the line; else
the `__getitem__` (`dataset_site`); where that is installed code, the DataLoader's (`loader_site`).

Gain at most. `1 / (1 - data_wait_fraction)`: the step without any wait. `n` workers bring it to
`max(S - W, t / n)` with step `S`, wait `W` and `t` to make a batch (DS-Analyzer, VLDB 2021), as far as
free CPUs go round.

Remedy. Cheaper samples, or `loader_workers`: `num_workers` = `suggested_workers`. Where computing keeps the CPUs busy,
workers take their time from it: `1 / cpus_busy_fraction` is the most that they bring. Samples
that are only picked from memory (below 50 us each) cost least where a batch is picked at once:
`whole_batches` does that for a TensorDataset, a `__getitems__` for a dataset of your own. To test it: the
same number of steps with and without, in turns, at least four pairs.

What can go wrong. Random numbers that the dataset or collate function draws (`draws_random`) come from the workers then:
the same samples in the same order, augmented with other numbers, so losses change as with another seed; the doctor proves
that nothing else does (`other_draws`). Each worker holds the dataset. Scripts whose main part is
not under `if __name__ == "__main__"` run again in workers that are spawned.
"""

from __future__ import annotations

import math

from hotloop.core.census import LoaderUse
from hotloop.judge.data_wait import why_waiting
from hotloop.judge.judged_run import Found, JudgedRun, gain_without, is_installed
from hotloop.judge.own_code import samples_line
from hotloop.judge.thresholds import SAMPLED_S, TRIVIAL_SAMPLE_S
from hotloop.judge.worker_count import more_workers


def find(run: JudgedRun) -> Found | None:
    waiting = why_waiting(run)
    if waiting is None or waiting.cause != "serial" or waiting.loader is None:
        return None
    loader = waiting.loader
    workers, site = more_workers(run.census), _site(run, loader)
    trivial = is_trivial(loader)
    if trivial:
        advice = (
            "The data is in memory: pick a batch at once (`__getitems__`, or index the tensors with a list) "
            "instead of sample by sample."
        )
    else:
        cheaper = f"Make samples cheaper at {site}, or try" if site != loader.site else "Try"
        number = f"num_workers={workers}" if workers else "loader workers"
        advice = f"{cheaper} {number} in the DataLoader of {loader.site}."
        busy, cpus = waiting.cpus_busy, run.cpus
        most = max(1 / busy, 1.0) if busy and cpus else math.inf
        if most < gain_without(waiting.share):
            advice += (
                f" Workers only help as far as CPUs are idle: this process kept {100 * (busy or 0):.0f} % of {cpus:g} busy, "
                f"so they bring {most:.2f}x at most."
            )
        if loader.iterable:
            advice += (
                " An IterableDataset must then give each worker its own part (torch.utils.data.get_worker_info), "
                "or samples come twice."
            )
        if loader.draws_random:
            advice += (
                " Its random numbers will then come from the workers: the same samples in the same order, augmented with other "
                "numbers, so losses change as with another seed."
            )
    return Found(
        share=waiting.share,
        site=site,
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


def _site(run: JudgedRun, loader: LoaderUse) -> str:
    if loader.dataset_site is None or is_installed(loader.dataset_site):
        return loader.site
    made_s = (loader.fetch_s or 0.0) - (loader.collate_s or 0.0)
    if made_s < SAMPLED_S * (loader.batch_size or 1):
        return loader.dataset_site
    return samples_line(run.lines("data_wait"), run.census) or loader.dataset_site


def is_trivial(loader: LoaderUse) -> bool:
    """Whether its samples are only picked from memory: sending one takes as long as picking it."""
    if not loader.in_memory or loader.fetch_s is None or not loader.batch_size:
        return False
    return loader.fetch_s / loader.batch_size < TRIVIAL_SAMPLE_S
