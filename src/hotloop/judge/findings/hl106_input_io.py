"""HL106: making a batch waits for disk or network

What it means. The training waits for data, and whoever makes the batch computes for less than half of
that time: it waits itself, for a disk, a network file system, a download, a lock or a sleep.

Evidence. `data_wait_fraction`: exposed waits over wall time; reported from 0.05.
`fetch_cpu_fraction`: CPU over wall seconds while a batch was made; 0.5 or less. Where workers run the
CPUs are not full (`cpus_busy_fraction` below 0.85): who waits for its turn looks the same. Where other programs
fill the machine it must be half of what the training gets while it computes, or nothing is said.

Gain at most. `1 / (1 - data_wait_fraction)`: the step without any wait.

Remedy. Waiting takes no CPU, so many batches can wait at once: `loader_workers`, more of them than
CPUs (`suggested_workers`), and `prefetch`. Better: data on a local disk, few large files instead of many small ones
(shards, memory map), `item_cache` for what fits into memory. To test it: run the same steps twice;
a second run whose files are in the system's cache shows what a fast disk would bring.

What can go wrong. Many readers make a spinning disk or a shared file system slower for everyone.
"""

from __future__ import annotations

from hotloop.judge.data_wait import why_waiting
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.worker_count import more_workers


def find(run: JudgedRun) -> Found | None:
    waiting = why_waiting(run)
    if waiting is None or waiting.cause != "io" or waiting.loader is None:
        return None
    loader = waiting.loader
    workers = more_workers(run.census)
    more = f"num_workers={workers}. Then put" if workers else "more workers. Then put"
    return Found(
        share=waiting.share,
        site=loader.dataset_site or loader.site,
        evidence={
            "data_wait_fraction": waiting.share,
            "fetch_cpu_fraction": loader.fetch_cpu_fraction,
            "cpus_busy_fraction": waiting.cpus_busy,
            "fetch_s": loader.fetch_s,
            "num_workers": loader.num_workers,
            "suggested_workers": workers,
            "loader_site": loader.site,
        },
        optimization="loader_workers",
        advice=f"Let more batches wait at once: {more} the data on a local disk, in few large files.",
    )
