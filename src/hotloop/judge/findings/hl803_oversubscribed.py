"""HL803: more threads than CPUs

What it means. The model runs on the CPU with more threads than the process may use CPUs, as in a
container with a quota on a large machine. Threads wait for each other to get their turn.

Evidence. `num_threads` over `cpus` (per process): 1.5 and more. `computing_fraction`: share of wall time
in forward, backward and optimizer.

Gain at most. `1 / (1 - computing_fraction)`. This is loose: what the waiting costs shows only when
tried; it ranges from nothing to several times.

Remedy. `threads`: `OMP_NUM_THREADS` = `cpus`, or fewer where workers make batches. To test it: the same
steps with both, in turns.

What can go wrong. Sums are taken in another order: losses differ in the last bits.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import cpus_of, gain_without, is_foreign, runs_on_cpu
from hotloop.judge.thresholds import HIGH, OVERSUBSCRIBED

CODE = "HL803"
TITLE = "More threads compute than there are CPUs"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    cpus = cpus_of(measurement)
    if census is None or not is_foreign(census) or not runs_on_cpu(measurement):
        return None
    threads = census.num_threads or 1
    if threads < 2 or not cpus or threads < OVERSUBSCRIBED * cpus:
        return None
    phases = ("forward", "backward", "optimizer")
    share = sum(breakdown.fractions.get(phase, 0.0) for phase in phases)
    if share < HIGH:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(share),
        gain_is_loose=True,
        evidence={"num_threads": threads, "cpus": cpus, "computing_fraction": share},
        optimization="threads",
        advice=f"Set OMP_NUM_THREADS={max(int(cpus), 1)} in the environment.",
    )
