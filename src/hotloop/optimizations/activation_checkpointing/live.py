"""Turning on gradient checkpointing of a running Hugging Face model."""

from __future__ import annotations

from typing import Any

from torch import nn

from hotloop.optimizations.hooks import at_first_call
from hotloop.optimizations.live_report import Report


def apply(value: Any, report: Report) -> None:
    """Hugging Face models know where their blocks begin; of others nobody does."""
    at_first_call(lambda module: _turn_on(module, report))


def _turn_on(module: nn.Module, report: Report) -> None:
    name = type(module).__name__
    knowing = (m for m in module.modules() if callable(getattr(m, "gradient_checkpointing_enable", None)))  # fmt: skip
    model = next(knowing, None)
    if model is None:
        report.refused(
            f"{name} has no gradient_checkpointing_enable(): write torch.utils.checkpoint.checkpoint("
            "block, x, use_reentrant=False) around each of its blocks"
        )
        return
    if not getattr(model, "supports_gradient_checkpointing", False):
        report.refused(f"{type(model).__name__} does not support it")
        return
    if getattr(model, "is_gradient_checkpointing", False):
        report.refused(f"{type(model).__name__}: the script has turned it on")
        return
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    report.applied(type(model).__name__)
