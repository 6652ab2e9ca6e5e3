"""Gradients of DistributedDataParallel lie in the buckets that are sent, instead of being copied in and out."""

from __future__ import annotations

from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, live_hook
from hotloop.optimizations.source_edit import Keywords

ARGUMENT = "gradient_as_bucket_view"


def _values(census: Census) -> tuple[Any, ...]:
    return (True,) if census.ddp is not None and not census.ddp.gradient_as_bucket_view else ()


def _observed(census: Census, value: Any) -> bool | None:
    return census.ddp.gradient_as_bucket_view == value if census.ddp is not None else None


DDP_BUCKET_VIEW = Optimization(
    name="ddp_bucket_view",
    summary="Gradients lie in the buckets that DistributedDataParallel sends: fewer copies, and one set of gradients less "
    "in memory.",
    parity_class="bitwise",
    settings=(True,),
    argument=ARGUMENT,
    values_for=_values,
    needs="DistributedDataParallel",
    observed=_observed,
    answers=("HL601",),
    source_form="DistributedDataParallel(model, gradient_as_bucket_view=True)",
    source_edit=lambda value, facts: Keywords(
        "torch.nn.parallel", ("DistributedDataParallel",), {ARGUMENT: repr(value)}
    ),
    live_form=live_hook("set_ddp_argument", ARGUMENT),
    leaves="a script that wraps its model otherwise, or has it so already",
    risks="`detach_()` of a gradient, or putting another tensor in its place, fails or is undone.",
)
