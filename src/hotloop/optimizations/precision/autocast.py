"""Autocast, the gradient scaler and TF32, for the trainer and for live scripts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device_type: str, precision: str) -> AbstractContextManager[Any]:
    """The context a forward runs in: autocast for bf16 and fp16, nothing otherwise."""
    dtype = DTYPES.get(precision)
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
