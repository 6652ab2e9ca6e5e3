"""Gradients of DistributedDataParallel lie in the buckets that are sent, instead of being copied in and out."""

from __future__ import annotations

from hotloop.optimizations.optimization import Optimization, ddp_argument

DDP_BUCKET_VIEW = Optimization(
    name="ddp_bucket_view",
    summary="Gradients lie in the buckets that DistributedDataParallel sends: fewer copies, and one set of gradients less "
    "in memory.",
    parity_class="bitwise",
    settings=(True,),
    **ddp_argument("gradient_as_bucket_view"),
    values_for=lambda census: (
        (True,) if census.ddp and not census.ddp.gradient_as_bucket_view else ()
    ),
    needs="DistributedDataParallel",
    answers=("HL601",),
    source_form="DistributedDataParallel(model, gradient_as_bucket_view=True)",
    leaves="a script that wraps its model otherwise, or has it so already",
    risks="`detach_()` of a gradient, or putting another tensor in its place, fails or is undone.",
)
