"""Memory that a step frees stays with the process for the next step.

glibc hands big blocks (by default those above 32 MiB at the latest) back to the kernel when they are
freed, and asks for them again in the next step: every page is then faulted in and zeroed anew. On a
CPU that can be a tenth of a step and more. `keep` tells glibc's allocator to take all blocks from its
heap and never to shrink it (mallopt(3): M_MMAP_MAX 0, M_TRIM_THRESHOLD -1), and asks for huge pages
under the heap (madvise(2)), which most kernels leave to programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization, seen_as


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if machine.device_type != "cpu":
        return Choice("default", "a step's memory is the device's")
    if machine.why_no_kept_memory is not None:
        return Choice("default", machine.why_no_kept_memory)
    return Choice("keep", "a step on a CPU asks for the same memory as the step before")


HOST_MEMORY = Optimization(
    name="host_memory",
    summary="Memory that a step frees stays with the process instead of going back to the kernel.",
    parity_class="bitwise",
    key="train.host_memory",
    off="default",
    settings=("keep",),
    choose=_choose,
    why_not=lambda machine, value, config: machine.why_no_kept_memory if value == "keep" else None,
    observed=seen_as("host_memory"),
    source_form=(
        "# in the shell, before Python starts\n"
        "export GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:"
        "glibc.malloc.hugetlb=1"
    ),
    no_live_form="not yet applied to foreign scripts",
    risks="The process never gives memory back: its resident set stays at the highest it ever needed.",
)
