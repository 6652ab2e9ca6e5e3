"""HL105: making batches takes more CPU than there is

What it means. The training waits for data, and the CPUs that it may use are busy. More workers would
only take turns on the same CPUs.

Evidence. `data_wait_fraction`: exposed waits over wall time; reported from 0.05. `cpus_busy_fraction`: share of
`cpus` that the process and its workers kept busy; 0.85 and more, or at least as many workers as CPUs
where it is not known, or a single CPU. Not where others fill the machine instead (`foreign_busy`: their
share of it): who is late then may have waited for its turn. `fetch_s`: seconds to make one batch.

Gain at most. `1 / (1 - data_wait_fraction)`: the step without any wait, which only cheaper batches or
more CPUs reach.

Remedy. Do less per sample: decode smaller images, tokenize or resize once and store the result
(`item_cache`), move augmentation to the GPU. One thread in each worker (`torch.set_num_threads(1)`;
torch's workers do that by themselves, OpenCV's do not: `cv2.setNumThreads(0)`). To test it: train on
one batch repeated; that is the pace without any input.

What can go wrong. Stored results take disk, and freeze random augmentation that was done before them.
"""

from __future__ import annotations

from hotloop.judge.data_wait import why_waiting
from hotloop.judge.judged_run import Found, JudgedRun


def find(run: JudgedRun) -> Found | None:
    waiting = why_waiting(run)
    if waiting is None or waiting.cause != "cpus_full" or waiting.loader is None:
        return None
    loader = waiting.loader
    return Found(
        share=waiting.share,
        site=loader.dataset_site or loader.site,
        evidence={
            "data_wait_fraction": waiting.share,
            "num_workers": loader.num_workers,
            "cpus": run.cpus,
            "cpus_busy_fraction": waiting.cpus_busy,
            "fetch_s": loader.fetch_s,
            "foreign_busy": run.census.foreign_busy,
        },
        optimization="item_cache",
        advice="More workers will not help. Make samples cheaper: decode and resize once and store "
        "the result, or move transforms to the GPU.",
    )
