"""Gradients travel between processes in half as many bytes.

Rounded to bf16 or fp16, summed over the processes in that dtype, and widened to fp32 again, bucket by
bucket while the rest of the backward still computes. Weights, accumulation over microbatches and the
optimizer stay fp32. As torch's own `bf16_compress_hook`, but a sum: the loss is divided by the targets
of the whole step already.
"""

from __future__ import annotations

from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Choice, Optimization

_CENSUS_NAME = {"none": "float32", "bf16": "bfloat16", "fp16": "float16"}


def _observed(census: Census, value: Any) -> bool | None:
    if census.sent_gradient_dtype is None:
        return None
    return census.sent_gradient_dtype == _CENSUS_NAME[value]


GRADIENT_COMPRESSION = Optimization(
    name="gradient_compression",
    summary="Gradients rounded to bf16 or fp16 on their way between processes: half the bytes to send.",
    parity_class="reduced_precision",
    key="train.gradient_compression",
    off="none",
    settings=("bf16", "fp16"),
    choose=lambda machine, config: Choice(
        "none", "it rounds what is learned from, and pays only where the network is slow"
    ),
    observed=_observed,
    source_form="ddp.register_comm_hook(None, torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook)",
    no_live_form="a script's own reduction is not rewritten while it runs",
    conflicts=("needs several processes: one process sends nothing",),
    risks=(
        "Every process adds a rounding error. fp16 loses gradients below 6e-8 and overflows above 65504: "
        "bf16 is the safer choice. On one machine the casts can cost more than the bytes saved."
    ),
)
