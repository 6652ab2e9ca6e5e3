"""From the config's words to torch's optimizer."""

from __future__ import annotations

import torch
from torch import nn

from hotloop.core.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) over all parameters. `fused` must be resolved."""
    assert config.fused != "auto", "auto is resolved before training"
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True if config.fused else None,  # None lets torch choose as it does by default
    )


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Class and implementation as the optimizer itself reports them, e.g. `AdamW(fused)`."""
    group = optimizer.param_groups[0]
    how = "fused" if group.get("fused") else "foreach" if group.get("foreach") else "default"
    return f"{type(optimizer).__name__}({how})"
