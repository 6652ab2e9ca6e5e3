"""From the config's words to torch's optimizer."""

from __future__ import annotations

import torch

from hotloop.core.config import OptimizerConfig
from hotloop.models.decoder import Decoder
from hotloop.train.muon import Muon, decayed_apart


def build_optimizer(
    model: Decoder, config: OptimizerConfig, *, precision: str
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), SGD or Muon, over all parameters. `fused` must be resolved.

    Weight decay is that of matrices and embeddings, as in nanoGPT: it would draw the scales of norms to
    zero, where they switch their layer off, and biases hold nothing to keep small.
    `precision` is `train.precision`: in bf16 training Muon's own products are bf16 too.
    """
    assert config.fused != "auto", "auto is resolved before training"
    # None lets torch choose as it does by default
    fused = True if config.fused else None
    momentum = config.momentum
    match config.name:
        case "adamw":
            return torch.optim.AdamW(
                decayed_apart(model.parameters()),
                lr=config.learning_rate,
                betas=(config.beta1, config.beta2),
                eps=config.epsilon,
                weight_decay=config.weight_decay,
                fused=fused,
            )
        case "sgd":
            return torch.optim.SGD(
                decayed_apart(model.parameters()),
                lr=config.learning_rate,
                momentum=0.9 if momentum is None else momentum,
                nesterov=bool(config.nesterov),
                weight_decay=config.weight_decay,
                fused=fused,
            )
        case "muon":
            matrices = model.block_matrices()
            theirs = {id(parameter) for parameter, _ in matrices}
            return Muon(
                matrices,
                [p for p in model.parameters() if id(p) not in theirs],
                lr=config.learning_rate,
                momentum=0.95 if momentum is None else momentum,
                nesterov=momentum != 0 if config.nesterov is None else config.nesterov,
                betas=(config.beta1, config.beta2),
                eps=config.epsilon,
                weight_decay=config.weight_decay,
                fused=bool(config.fused),
                dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
            )
