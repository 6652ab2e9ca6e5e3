"""Which kernel scaled_dot_product_attention takes: cuDNN's before the others. Run on an H100, torch 2.11.

torch tries flash, memory-efficient, written out and cuDNN's, in this order, and takes the first that can
do what is asked for: so cuDNN's only where the written-out form cannot, which is never.
"""

from __future__ import annotations

from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, only_on


def _values(census: Census) -> tuple[Any, ...]:
    called = any(name.startswith("sdpa:") for name in census.attention)
    on_cuda = (census.device or "").startswith("cuda")
    return ("cudnn",) if called and on_cuda and "sdpa:cudnn" not in census.attention else ()


SDPA_BACKEND = Optimization(
    name="sdpa_backend",
    summary="scaled_dot_product_attention takes cuDNN's kernel where that can do what is asked for.",
    parity_class="reduction_order",
    settings=("cudnn",),
    values_for=_values,
    why_not=only_on("cuda", "on a CPU torch has one fused kernel, and takes it wherever it can"),
    observed=lambda census, value: (
        f"sdpa:{value}" in census.attention if census.attention else None
    ),
    answers=("HL306",),
    source_form=(
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,\n"
        "         SDPBackend.MATH]\n"
        "with sdpa_kernel(order, set_priority=True):\n"
        "    loss = model(x, y)"
    ),
    needs="a call of scaled_dot_product_attention on CUDA",
    leaves="a script with an order of its own; a compiled model, where what it takes could not be seen; what cuDNN cannot do",
    risks="Dropout inside attention draws other random numbers. Not every shape is faster.",
)
