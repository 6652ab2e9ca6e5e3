"""Each computing thread held to a CPU of its own, cores and NUMA nodes one after another.

A thread that the kernel moves finds its caches cold, and on a machine of several nodes the memory that it touched first
far away. OpenMP does this by variables that are read before the first thread (`OMP_PROC_BIND`, `OMP_PLACES`; those of
Intel's library are `KMP_AFFINITY`), and binds the first thread, too: all that it starts later, savers, loaders,
compilers, would share its CPU. hotloop's trainer asks the kernel instead, for the other threads of the pool alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if value == "none":
        return None
    if machine.device_type != "cpu":
        return "the model runs on the GPU: threads of the CPU compute nothing of it"
    if not hasattr(os, "sched_setaffinity"):
        return "this system does not bind threads to CPUs"
    if machine.num_threads == 1:
        return "one thread computes, and the kernel moves it only where that is better"
    return None


THREAD_BINDING = Optimization(
    name="thread_binding",
    summary="Each thread that computes on the CPU, but for the first, held to a CPU of its own.",
    parity_class="bitwise",
    key="train.thread_binding",
    off="none",
    settings=("cores",),
    choose=lambda machine, config: Choice("none", "it is not known to be faster; tune tries it"),
    why_not=_why_not,
    observed=lambda census, value: (
        None if census.bound_threads is None else bool(census.bound_threads) == (value == "cores")
    ),
    unobserved="no thread was bound",
    source_form="export OMP_PROC_BIND=close OMP_PLACES=cores  # in the shell, before Python starts",
    no_live_form="of a script it is set in the shell: `hotloop tune --vary OMP_PROC_BIND=close -- COMMAND` tries it",
    risks="Where other programs use the same CPUs, a bound thread waits for them, and the others for it.",
)
