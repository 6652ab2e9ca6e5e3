"""Clipping gradients by the factor that a fused optimizer applies."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def clip_through_optimizer(
    parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer, max_norm: float
) -> Tensor:
    """Hand the factor to the next `optimizer.step()`; returns the norm before, on the device, unread.

    Fused optimizers divide gradients by `grad_scale`, the protocol that `torch.amp.GradScaler` uses.
    """
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    divisor = ((norm + 1e-6) / max_norm).clamp(min=1.0)
    if not (divisor.is_cpu and divisor <= 1):  # which would write every gradient again
        optimizer.grad_scale = divisor  # type: ignore[attr-defined]
    return norm


def forget_factor(optimizer: torch.optim.Optimizer) -> None:
    """Take the factor back after `optimizer.step()`, so that no later step is scaled by it."""
    vars(optimizer).pop("grad_scale", None)


def can_clip_through(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer takes a factor for its gradients in `step()`."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
