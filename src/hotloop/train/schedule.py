"""Learning rate as a pure function of the step."""

from __future__ import annotations

import math

from hotloop.core.config import RunConfig


def learning_rate(config: RunConfig, step: int) -> float:
    """The learning rate of `step` (from 0): linear warmup, then the schedule's decay.

    Cosine after Loshchilov and Hutter 2017, ending at `final_fraction` of the highest rate.
    """
    highest, warmup = config.optimizer.learning_rate, config.schedule.warmup_steps
    if step < warmup:
        return highest * (step + 1) / warmup
    final = config.schedule.final_fraction
    done = min(1.0, (step - warmup) / max(1, config.train.steps - warmup))
    match config.schedule.name:
        case "constant":
            return highest
        case "linear":
            return highest * (1 - (1 - final) * done)
        case "cosine":
            return highest * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done)))
