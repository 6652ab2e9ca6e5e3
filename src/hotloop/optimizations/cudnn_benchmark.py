"""cuDNN times its algorithms for a convolution's shapes once, and takes the fastest. Not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop.optimizations.optimization import Optimization
from hotloop.optimizations.source_edit import SetUp, SourceEdit

if TYPE_CHECKING:
    import torch

    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine
    from hotloop.optimizations.live import Report


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    return None if machine.device_type == "cuda" else "only cuDNN chooses among algorithms by trial"


def _observed(census: Census, value: Any) -> bool | None:
    return census.cudnn_benchmark == value if census.cudnn_benchmark is not None else None


def _live(value: Any, report: Report) -> None:
    """From the second step on, so that what the script itself chose is known by then."""
    import torch

    from hotloop.optimizations.by_step import at_step_end, device_type_of
    from hotloop.optimizations.callers import TORCH, caller, place

    flag = vars(type(torch.backends.cudnn))["benchmark"]
    turn = flag.setter
    chosen: list[str] = []

    def chose(wanted: bool) -> None:
        frame = caller(passing=(TORCH,))
        chosen.append(f"the script sets cudnn.benchmark = {wanted} at {place(frame)}")
        report.refused(chosen[-1])
        turn(wanted)

    def step_ended(number: int, optimizer: torch.optim.Optimizer) -> None:
        if number != 1 or chosen:
            return
        why = None
        if device_type_of(optimizer) != "cuda":
            why = "the model does not run on a CUDA device"
        elif torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
            why = "the script asks for deterministic algorithms"
        if why is not None:
            report.refused(why)
            return
        turn(True)
        report.applied("convolutions from the second step on")

    flag.setter = chose
    at_step_end(step_ended, report)


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    return SetUp((f"torch.backends.cudnn.benchmark = {bool(value)}",), ("cudnn.benchmark",))


CUDNN_BENCHMARK = Optimization(
    name="cudnn_benchmark",
    summary="cuDNN times its algorithms once for the shapes of each convolution, and takes the fastest.",
    parity_class="reduction_order",
    settings=(True,),
    why_not=_why_not,
    observed=_observed,
    answers=("HL305",),
    source_form="torch.backends.cudnn.benchmark = True  # before the first step",
    source_edit=_source_edit,
    live_form=_live,
    risks=(
        "Every new shape is timed again. Algorithms, and so the last bits of losses, differ from run to "
        "run. They need memory to work in."
    ),
)
