"""As many threads for the operations of torch on the CPU as there are CPUs for this process.

`torchrun` and many cluster scripts set `OMP_NUM_THREADS=1`; in a container torch may count the CPUs of
the whole machine instead of those it may use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.judge.data_wait import is_crowded
from hotloop.optimizations.optimization import Optimization, only_on, seen_as
from hotloop.optimizations.source_edit import SetUp, SourceEdit

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _values(census: Census) -> tuple[Any, ...]:
    """The CPUs over the ranks on this machine; none where that is what it has, it is not known, or other programs take them."""
    if not (census.device or "").startswith("cpu") or not census.cpus or is_crowded(census):
        return ()
    if (census.num_ranks or 1) > 1 and not census.num_local_ranks:
        return ()
    threads = max(int(census.cpus / (census.num_local_ranks or 1)), 1)
    return () if threads == census.num_threads else (threads,)


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    return SetUp(
        (f"torch.set_num_threads({int(value)})  # for the machine that it was measured on",),
        ("set_num_threads", *VARIABLES),
        f"{int(value)} suits this machine alone; `OMP_NUM_THREADS={int(value)}` in the shell does the same here",
    )


THREADS = Optimization(
    name="threads",
    summary="As many threads for torch's operations on the CPU as this process has CPUs.",
    parity_class="reduction_order",
    settings=(os.cpu_count() or 1,),
    argument="num_threads",
    values_for=_values,
    needs="CPUs that other programs leave alone, and another number of threads than of CPUs",
    why_not=only_on("cpu", "the model runs on the GPU: threads of the CPU compute nothing of it"),
    observed=seen_as("num_threads"),
    answers=("HL802", "HL803"),
    source_form="torch.set_num_threads(4)  # or, in the shell: export OMP_NUM_THREADS=4",
    source_edit=_source_edit,
    leaves=(
        "a script that calls `torch.set_num_threads` or sets `OMP_NUM_THREADS` or `MKL_NUM_THREADS` in code; a GPU; ranks "
        "without `LOCAL_WORLD_SIZE`"
    ),
    risks="Workers of a loader need CPUs, too. Short operations get slower with many threads. Sums are taken in another order.",
)
