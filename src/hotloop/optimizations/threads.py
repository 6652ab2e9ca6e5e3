"""As many threads for the operations of torch on the CPU as there are CPUs for this process.

`torchrun` and many cluster scripts set `OMP_NUM_THREADS=1`; in a container torch may count the CPUs of
the whole machine instead of those it may use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.optimizations.optimization import Optimization
from hotloop.optimizations.source_edit import SetUp, SourceEdit

if TYPE_CHECKING:
    import torch

    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine
    from hotloop.optimizations.live import Report

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _values(census: Census) -> tuple[Any, ...]:
    """The CPUs over the ranks on this machine; none where that is what it has, or it is not known."""
    if not (census.device or "").startswith("cpu") or not census.cpus:
        return ()
    if (census.num_ranks or 1) > 1 and not census.num_local_ranks:
        return ()
    threads = max(int(census.cpus / (census.num_local_ranks or 1)), 1)
    return () if threads == census.num_threads else (threads,)


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if machine.device_type != "cpu":
        return "the model runs on the GPU: threads of the CPU compute nothing of it"
    return None


def _observed(census: Census, value: Any) -> bool | None:
    return census.num_threads == value if census.num_threads is not None else None


def _live(value: Any, report: Report) -> None:
    """When the first optimizer is made: in the process that trains, not in those that load, and before
    anything is compiled, since another number of threads would have it compiled again."""
    import torch

    from hotloop.optimizations.by_step import at_step_end, device_type_of
    from hotloop.optimizations.callers import TORCH, caller, place
    from hotloop.probe.entry import around_call

    before = torch.get_num_threads()
    set_num_threads = torch.set_num_threads
    done = False

    def chose(original: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal done
        frame = caller()
        if frame is not None and not frame.f_code.co_filename.startswith(TORCH):
            done = True
            report.refused(f"the script calls torch.set_num_threads at {place(frame)}")
        original(*args, **kwargs)

    def made(original: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal done
        original(*args, **kwargs)
        if done:
            return
        done = True
        why = _chosen_in_code()
        if why is None:
            set_num_threads(int(value))
        else:
            report.refused(why)

    def step_ended(number: int, optimizer: torch.optim.Optimizer) -> None:
        if number != 1 or torch.get_num_threads() != int(value) or before == int(value):
            return
        if device_type_of(optimizer) == "cpu":
            report.applied(f"threads: {value} instead of {before}")
        else:
            set_num_threads(before)
            report.refused("the model does not run on the CPU")

    around_call(torch, "set_num_threads", chose)
    around_call(torch.optim.Optimizer, "__init__", made)
    at_step_end(step_ended, report)


def _chosen_in_code() -> str | None:
    """A variable that the process has set for itself: it was another one when it was started."""
    try:
        parts = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:  # not Linux: not known
        return None
    started = dict(os.fsdecode(part).partition("=")[::2] for part in parts if part)
    for name in VARIABLES:
        if os.environ.get(name) != started.get(name) and name in os.environ:
            return f"the script sets {name}={os.environ[name]}"
    return None


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
    values_for=_values,
    why_not=_why_not,
    observed=_observed,
    answers=("HL802", "HL803"),
    source_form="torch.set_num_threads(4)  # or, in the shell: export OMP_NUM_THREADS=4",
    source_edit=_source_edit,
    live_form=_live,
    risks=(
        "Workers of a loader need CPUs, too. Short operations get slower with many threads. Sums are "
        "taken in another order."
    ),
)
