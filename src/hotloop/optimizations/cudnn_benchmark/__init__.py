"""cuDNN times its algorithms for a convolution's shapes once, and takes the fastest. Not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, live_in, only_on
from hotloop.optimizations.source_edit import SetUp, SourceEdit


def _observed(census: Census, value: Any) -> bool | None:
    return census.cudnn_benchmark == value if census.cudnn_benchmark is not None else None


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    return SetUp((f"torch.backends.cudnn.benchmark = {bool(value)}",), ("cudnn.benchmark",))


CUDNN_BENCHMARK = Optimization(
    name="cudnn_benchmark",
    summary="cuDNN times its algorithms once for the shapes of each convolution, and takes the fastest.",
    parity_class="reduction_order",
    settings=(True,),
    why_not=only_on("cuda", "only cuDNN chooses among algorithms by trial"),
    observed=_observed,
    answers=("HL305",),
    source_form="torch.backends.cudnn.benchmark = True  # before the first step",
    source_edit=_source_edit,
    leaves="a script that sets `cudnn.benchmark` or asks for deterministic algorithms; a CPU",
    live_form=live_in(__name__),
    risks=(
        "Every new shape is timed again. Algorithms, and so the last bits of losses, differ from run to "
        "run. They need memory to work in."
    ),
)
