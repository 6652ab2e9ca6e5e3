"""cuDNN times its algorithms for a convolution's shapes once, and takes the fastest. Run on an H100, torch 2.11."""

from __future__ import annotations

from hotloop.optimizations.optimization import Optimization, only_on, seen_as
from hotloop.optimizations.source_edit import SetUp

CUDNN_BENCHMARK = Optimization(
    name="cudnn_benchmark",
    summary="cuDNN times its algorithms once for the shapes of each convolution, and takes the fastest.",
    parity_class="reduction_order",
    settings=(True,),
    why_not=only_on("cuda", "only cuDNN chooses among algorithms by trial"),
    observed=seen_as("cudnn_benchmark"),
    answers=("HL305",),
    source_form="torch.backends.cudnn.benchmark = True  # before the first step",
    source_edit=lambda value, facts: SetUp(
        (f"torch.backends.cudnn.benchmark = {bool(value)}",), ("cudnn.benchmark",)
    ),
    leaves="a script that sets `cudnn.benchmark` or asks for deterministic algorithms; a CPU",
    risks=(
        "Every new shape is timed again. Algorithms, and so the last bits of losses, differ from run to "
        "run. They need memory to work in."
    ),
)
