"""HL601: the processes wait for each other's gradients

What it means. Sending gradients is not hidden behind computing them: the step stands still until all
have theirs.

Evidence. `communication_fraction`: share of device time in communication that no computing hides, or
on a CPU of wall time in the phase `grad_sync`; what goes on inside the pass backward is taken from the
steps under torch's profiler, where both are seen. Reported from 0.1. `num_ranks`, `parallel`,
`microbatches` per step.

Gain at most. `1 / (1 - communication_fraction)`: sending costs nothing. With `m` microbatches per step
and sending only after the last it falls to `1 / m`. Part of it may be waiting for a slower process.

Remedy. DistributedDataParallel instead of DataParallel; `with model.no_sync()` for all microbatches but
the last; `ddp_bucket_view`, which keeps gradients where they are sent from; gradients sent in bfloat16 by
`torch.distributed.algorithms.ddp_comm_hooks`. To test it: the same steps with each, in turns. Other bucket sizes
(`bucket_cap_mb`) brought nothing between two processes on a CPU; over a network larger ones may.

What can go wrong. Shorter gradients are rounded: compare losses. `no_sync` keeps whole gradients in
memory with sharded models.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import MODERATE


def find(run: JudgedRun) -> Found | None:
    census = run.census
    if not run.is_foreign:
        return None
    if (census.num_ranks or 1) < 2 and census.parallel != "DataParallel":
        return None
    share = run.host("grad_sync") if run.on_cpu else run.device("communication")
    if not MODERATE <= share < 1:
        return None
    has_view = census.ddp is not None and census.ddp.gradient_as_bucket_view
    return Found(
        share=share,
        evidence={
            "communication_fraction": share,
            "num_ranks": census.num_ranks,
            "parallel": census.parallel,
            "microbatches": census.microbatches,
        },
        optimization="ddp_bucket_view" if census.ddp is not None and not has_view else None,
        advice=_advice(census.parallel, census.microbatches, has_view),
    )


def _advice(parallel: str | None, microbatches: float | None, has_view: bool) -> str:
    if parallel == "DataParallel":
        return "Use DistributedDataParallel with one process per device."
    if microbatches is not None and microbatches > 1:
        return "Wrap all microbatches but the last in `with model.no_sync():`."
    if has_view:
        return "Over a network, try larger buckets (bucket_cap_mb) in DDP."
    return "Try gradient_as_bucket_view=True, and over a network larger buckets (bucket_cap_mb), in DDP."
