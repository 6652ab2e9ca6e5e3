"""HL802: one thread computes where more are allowed

What it means. The model runs on the CPU with one thread, and the process may use more CPUs.
`torchrun` and many cluster scripts set `OMP_NUM_THREADS=1`; on a CPU that is the whole computer.

Evidence. `num_threads`: 1. `cpus`: what one process may use, 2 or more. `parallel_fraction`: share of a
step in operations of forward and backward long enough to be split (20 us and more), seen by torch's
profiler.

Gain at most. `1 / (1 - f + f / cpus)` with `f` the `parallel_fraction` (Amdahl), reported from 1.05.
Hardware threads that share a core bring less.

Remedy. `threads`: `OMP_NUM_THREADS` = the CPUs (per process), or `torch.set_num_threads` at the start.
To test it: the same steps with 1, half and all of the CPUs, in turns.

What can go wrong. Workers of a DataLoader need CPUs, too. Sums are taken in another order: losses differ
in the last bits. Short operations get slower with many threads.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import cpus_of, is_foreign, runs_on_cpu
from hotloop.judge.operations import operations
from hotloop.judge.thresholds import HEALTHY_BELOW, SHORT_OPERATION_S

CODE = "HL802"
TITLE = "One thread computes where more are allowed"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    cpus = int(cpus_of(measurement) or 0)
    if census is None or not is_foreign(census) or not runs_on_cpu(measurement):
        return None
    seen = operations(measurement)
    if census.num_threads != 1 or cpus < 2 or seen is None:
        return None
    computing = breakdown.fractions.get("forward", 0.0) + breakdown.fractions.get("backward", 0.0)
    share = min(seen.long_share(SHORT_OPERATION_S), computing)
    gain = 1 / (1 - share + share / cpus)
    if gain < HEALTHY_BELOW:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
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
