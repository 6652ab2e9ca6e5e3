"""Learning rate as a pure function of the step."""

from __future__ import annotations

import math

from hotloop.core.config import RunConfig


def learning_rate(config: RunConfig, step: int) -> float:
    """The learning rate of `step` (from 0): warmup, then the schedule's decay.

    Reaches `final_fraction` of the highest rate where the step after the last would be.
    cosine: Loshchilov and Hutter 2017. wsd, with 1 - sqrt: Hu et al. 2024, Hägele et al. 2024.
    onecycle: Smith and Topin 2018, in half cosines as in `torch.optim.lr_scheduler.OneCycleLR`.
    """
    schedule, steps = config.schedule, config.train.steps
    highest, warmup = config.optimizer.learning_rate, schedule.warmup_steps
    if step < warmup:
        if schedule.name == "onecycle":
            return highest * _half_cosine(schedule.initial_fraction, 1.0, step / warmup)
        return highest * (step + 1) / warmup
    final = schedule.final_fraction
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    match schedule.name:
        case "constant":
            return highest
        case "linear":
            return highest * (1 - (1 - final) * done)
        case "cosine" | "onecycle":
            return highest * _half_cosine(1.0, final, done)
        case "wsd":
            decay = schedule.decay_fraction * steps
            fallen = min(1.0, max(0.0, (step - (steps - decay)) / decay))
            return highest * (final + (1 - final) * (1 - math.sqrt(fallen)))


def _half_cosine(start: float, end: float, done: float) -> float:
    """From `start` to `end` as `done` goes from 0 to 1, level at both ends."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * done))
