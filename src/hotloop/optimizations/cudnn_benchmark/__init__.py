"""cuDNN times its algorithms for a convolution's shapes once, and takes the fastest. Not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop.optimizations.optimization import Optimization, live_in
from hotloop.optimizations.source_edit import SetUp, SourceEdit

if TYPE_CHECKING:
    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    return None if machine.device_type == "cuda" else "only cuDNN chooses among algorithms by trial"


def _observed(census: Census, value: Any) -> bool | None:
    return census.cudnn_benchmark == value if census.cudnn_benchmark is not None else None


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
    live_form=live_in(__name__),
    risks=(
        "Every new shape is timed again. Algorithms, and so the last bits of losses, differ from run to "
        "run. They need memory to work in."
    ),
)
