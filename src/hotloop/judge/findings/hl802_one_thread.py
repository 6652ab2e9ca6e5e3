"""HL802: one thread computes where more are allowed

What it means. The model runs on the CPU with one thread, and the process may use more CPUs.
`torchrun` and many cluster scripts set `OMP_NUM_THREADS=1`; on a CPU that is the whole computer.

Evidence. `num_threads`: 1. `cpus`: what one process may use, 2 or more. `parallel_fraction`: share of a
step in operations of forward and backward long enough to be split (20 us and more), seen by torch's
profiler. Not said while other programs fill the CPUs: threads that wait for each other would be slower.

Gain at most. `1 / (1 - f + f / cpus)` with `f` the `parallel_fraction` (Amdahl), reported from 1.05.
Hardware threads that share a core bring less.

Remedy. `threads`: `OMP_NUM_THREADS` = the CPUs (per process), or `torch.set_num_threads` at the start.
To test it: the same steps with 1, half and all of the CPUs, in turns.

What can go wrong. Workers of a DataLoader need CPUs, too. Sums are taken in another order: losses differ
in the last bits. Short operations get slower with many threads.
"""

from __future__ import annotations

from hotloop.judge.data_wait import is_crowded
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import HEALTHY_BELOW, SHORT_OPERATION_S


def find(run: JudgedRun) -> Found | None:
    cpus = int(run.cpus or 0)
    seen = run.operations
    if not run.is_foreign or not run.on_cpu or seen is None:
        return None
    if run.census.num_threads != 1 or cpus < 2 or is_crowded(run.census):
        return None
    share = min(seen.long_share(SHORT_OPERATION_S), run.host("forward", "backward"))
    gain = 1 / (1 - share + share / cpus)
    if gain < HEALTHY_BELOW:
        return None
    return Found(
        share=share,
        gain_at_most=gain,
        evidence={
            "num_threads": 1,
            "cpus": cpus,
            "parallel_fraction": share,
        },
        optimization="threads",
        advice=f"Set OMP_NUM_THREADS={cpus} in the environment; where it is set, look in the script "
        "for torch.set_num_threads(1), which outranks it.",
    )
