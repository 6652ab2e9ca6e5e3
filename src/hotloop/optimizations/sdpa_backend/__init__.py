"""Which kernel scaled_dot_product_attention takes: cuDNN's before the others. Not yet run on a GPU.

torch tries flash, memory-efficient, written out and cuDNN's, in this order, and takes the first that can
do what is asked for: so cuDNN's only where the written-out form cannot, which is never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop.optimizations.optimization import Optimization, live_in

if TYPE_CHECKING:
    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine


def _values(census: Census) -> tuple[Any, ...]:
    called = any(name.startswith("sdpa:") for name in census.attention)
    on_cuda = (census.device or "").startswith("cuda")
    return ("cudnn",) if called and on_cuda and "sdpa:cudnn" not in census.attention else ()


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if machine.device_type != "cuda":
        return "on a CPU torch has one fused kernel, and takes it wherever it can"
    return None


def _observed(census: Census, value: Any) -> bool | None:
    return f"sdpa:{value}" in census.attention if census.attention else None


SDPA_BACKEND = Optimization(
    name="sdpa_backend",
    summary="scaled_dot_product_attention takes cuDNN's kernel where that can do what is asked for.",
    parity_class="reduction_order",
    settings=("cudnn",),
    values_for=_values,
    why_not=_why_not,
    observed=_observed,
    answers=("HL306",),
    source_form=(
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,\n"
        "         SDPBackend.MATH]\n"
        "with sdpa_kernel(order, set_priority=True):\n"
        "    loss = model(x, y)"
    ),
    live_form=live_in(__name__),
    risks="Dropout inside attention draws other random numbers. Not every shape is faster.",
)
