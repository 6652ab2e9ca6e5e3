"""DistributedDataParallel without its search for parameters that were not used, where there are none."""

from __future__ import annotations

from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, ddp_argument


def _values(census: Census) -> tuple[Any, ...]:
    ddp = census.ddp
    return (False,) if ddp and ddp.find_unused_parameters and ddp.unused_bytes == 0 else ()


DDP_UNUSED_SEARCH = Optimization(
    name="ddp_unused_search",
    summary="DistributedDataParallel does not search each step for parameters without gradient, where there are none.",
    parity_class="reduction_order",
    settings=(False,),
    **ddp_argument("find_unused_parameters"),
    values_for=_values,
    needs="DistributedDataParallel with find_unused_parameters=True, and no parameter without gradient in the first steps",
    answers=("HL602",),
    source_form="DistributedDataParallel(model, find_unused_parameters=False)",
    trainer_arguments=lambda value, applied_to: f"ddp_find_unused_parameters={value}",
    leaves="a model with parameters that some step did not use; a static graph, which searches once",
    risks="A parameter that is not used in some later step ends the training with an error.",
)
