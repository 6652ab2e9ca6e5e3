"""HL803: more threads compute than there are CPUs

What it means. The model runs on the CPU with more threads than the process may use CPUs, as in a
container with a quota on a large machine, or beside programs that fill the CPUs. Threads wait for each other to get their turn.

Evidence. `num_threads` over `cpus` (per process): 1.5 and more. `computing_fraction`: share of wall time
in forward, backward and optimizer. Where other programs fill the machine, `cpus` are those that they leave, at
least one, and `other_programs` is their share of all CPUs.

Gain at most. `1 / (1 - computing_fraction)`. This is loose: what the waiting costs shows only when
tried; it ranges from nothing to several times.

Remedy. `threads`: `OMP_NUM_THREADS` = `cpus`, or fewer where workers make batches. To test it: the same steps with both, in turns.
Beside other programs by hand, as long as they run, and not tried: it would slow down all other hours. On 2 CPUs that others kept
busy by 90 %, steps of three small trainings took 5 to 8 times as long with two threads as with one.

What can go wrong. Sums are taken in another order: losses differ in the last bits.
"""

from __future__ import annotations

from hotloop.judge.data_wait import is_crowded
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import HIGH, OVERSUBSCRIBED


def find(run: JudgedRun) -> Found | None:
    cpus = run.cpus
    threads = run.census.num_threads or 1
    if not run.is_foreign or not run.on_cpu:
        return None
    others = run.census.foreign_busy if is_crowded(run.census) else None
    if cpus and others is not None:
        cpus = max(cpus * (1 - others), 1.0)
    if threads < 2 or not cpus or threads < OVERSUBSCRIBED * cpus:
        return None
    share = run.host("forward", "backward", "optimizer")
    if share < HIGH:
        return None
    evidence: dict[str, float | str | None] = {
        "num_threads": threads,
        "cpus": cpus,
        "computing_fraction": share,
    }
    advice = f"Set OMP_NUM_THREADS={max(int(cpus), 1)} in the environment"
    if others is not None:
        evidence["other_programs"] = others
        advice += ", also for `hotloop doctor`, as long as other programs run: `threads` is not tried beside them"
    return Found(
        share=share,
        gain_is_loose=True,
        evidence=evidence,
        optimization="threads" if others is None else None,
        advice=f"{advice}.",
    )
