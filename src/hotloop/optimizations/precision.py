"""Mixed precision: matrix products in a dtype that the hardware computes faster than fp32.

Weights, gradients and optimizer state stay fp32 (Micikevicius et al. 2018); `torch.autocast` casts
at the products. bf16 has the range of fp32 and needs no scaler; fp16 does not and does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from hotloop.optimizations.optimization import Choice, Optimization

if TYPE_CHECKING:
    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CENSUS_NAME = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}


def autocast(device_type: str, precision: str) -> AbstractContextManager[Any]:
    """The context a forward runs in: autocast for bf16 and fp16, nothing otherwise."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype)


def gradient_scaler(device_type: str, precision: str) -> torch.amp.GradScaler | None:
    """A scaler for fp16, `None` for what needs none."""
    return torch.amp.GradScaler(device_type) if precision == "fp16" else None


def set_tf32(precision: str) -> None:
    """Turn TF32 on or off for products and convolutions of this process.

    Through the older switches: after a write through `fp32_precision`, other code that reads
    `allow_tf32` raises.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if "bfloat16" in machine.fast_dtypes:
        return Choice("bf16", "the hardware multiplies bf16 natively")
    if "float16" in machine.fast_dtypes:
        return Choice("fp16", "the hardware multiplies fp16 natively, bf16 not")
    return Choice("fp32", "no smaller dtype is native here")


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if value == "tf32" and machine.device_type != "cuda":
        return "tf32 is a mode of NVIDIA GPUs; this run is on the CPU"
    name = _CENSUS_NAME[value]
    if value != "fp32" and name not in machine.fast_dtypes:
        return f"{name} is only emulated on this device"
    return None


def _observed(census: Census, value: Any) -> bool | None:
    return _CENSUS_NAME[value] in census.matmul_dtypes if census.matmul_dtypes else None


PRECISION = Optimization(
    name="precision",
    summary="Matrix products in bf16, fp16 or tf32 instead of fp32; weights and optimizer stay fp32.",
    parity_class="reduced_precision",
    key="train.precision",
    off="fp32",
    settings=("bf16", "fp16", "tf32"),
    choose=_choose,
    why_not=_why_not,
    observed=_observed,
    answers=("HL301",),
    source_form="with torch.autocast(device_type, dtype=torch.bfloat16):\n    loss = model(x, y)",
    no_live_form="not yet applied to foreign scripts",
    risks=(
        "fp16 overflows without its scaler, and an overflowing step is skipped. Emulated dtypes are "
        "slower than fp32. Sums over many terms lose digits: the loss stays fp32."
    ),
)
