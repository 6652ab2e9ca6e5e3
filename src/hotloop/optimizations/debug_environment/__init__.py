"""Variables of the environment that are for debugging left out. `CUDA_LAUNCH_BLOCKING`: run on an H100, torch 2.11."""

from __future__ import annotations

from hotloop.optimizations.optimization import Optimization, seen_switch

VARIABLES = ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG")

DEBUG_ENVIRONMENT = Optimization(
    name="debug_environment",
    summary="The command without CUDA_LAUNCH_BLOCKING and TORCH_DISTRIBUTED_DEBUG=DETAIL, which are for debugging.",
    parity_class="bitwise",
    settings=(False,),
    values_for=lambda census: (False,) if census.has_switch(*VARIABLES) else (),
    needs="`CUDA_LAUNCH_BLOCKING` or `TORCH_DISTRIBUTED_DEBUG=DETAIL` in the environment",
    observed=seen_switch(*VARIABLES),
    answers=("HL808",),
    source_form="unset CUDA_LAUNCH_BLOCKING TORCH_DISTRIBUTED_DEBUG  # in the shell",
    source_edit=lambda value, facts: f"run it without {facts.get('variable')}",
    leaves="a script that sets them itself after it imported torch",
    risks="An error of a kernel is reported at a later line. Ranks whose collectives differ wait for each other instead of failing.",
)
