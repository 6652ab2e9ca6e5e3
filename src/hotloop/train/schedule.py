"""Learning rate as a pure function of the step."""

from __future__ import annotations

import math

from hotloop.core.config import RunConfig


def learning_rate(config: RunConfig, step: int) -> float:
    """The learning rate of `step` (from 0): warmup, then the schedule's decay.

    The last step has `final_fraction` of the highest rate. cosine: Loshchilov and Hutter 2017, as nanoGPT
    computes it, `lr_decay_iters` being the last step. linear: the same in a straight line. wsd, with
    1 - sqrt: Hu et al. 2024, Hägele et al. 2024; over the last steps, each of them one further down, as
    torchtitan counts them. onecycle: Smith and Topin 2018, point by point that of
    `torch.optim.lr_scheduler.OneCycleLR` with `total_steps` and `pct_start = warmup_steps / total_steps`.
    """
    schedule, last = config.schedule, config.train.steps - 1
    highest, warmup = config.optimizer.learning_rate, schedule.warmup_steps
    if schedule.name == "onecycle":
        if step < warmup - 1:
            done = step / (warmup - 1)
            return highest * _half_cosine(schedule.initial_fraction, 1.0, done)
        done = _share(step - (warmup - 1), last - (warmup - 1))
        return highest * _half_cosine(1.0, schedule.final_fraction, done)
    if step < warmup:
        return highest * (step + 1) / warmup
    final = schedule.final_fraction
    match schedule.name:
        case "constant":
            return highest
        case "linear":
            return highest * (1 - (1 - final) * _share(step - warmup, last - warmup))
        case "cosine":
            return highest * _half_cosine(1.0, final, _share(step - warmup, last - warmup))
        case "wsd":
            decay = config.decay_steps
            fallen = min(1.0, max(0.0, (step - (last - decay)) / decay))
            return highest * (final + (1 - final) * (1 - math.sqrt(fallen)))


def _share(done: int, whole: int) -> float:
    """`done / whole`, at most 1; of nothing all is done."""
    return min(1.0, done / whole) if whole > 0 else 1.0


def first_other_rate(one: RunConfig, other: RunConfig, steps: int) -> int | None:
    """The first of `steps` steps whose learning rates differ; `None` when all are the same."""
    return next((s for s in range(steps) if learning_rate(one, s) != learning_rate(other, s)), None)


def _half_cosine(start: float, end: float, done: float) -> float:
    """From `start` to `end` as `done` goes from 0 to 1, level at both ends."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * done))
