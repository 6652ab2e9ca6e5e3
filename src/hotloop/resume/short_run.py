"""The short run that stands for the user's own: the same settings, fewer steps, saves closer together, no trackers, no uploads."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop.core.errors import UsageError
from hotloop.core.settings import Settings, load_settings

DEFAULT_STEPS = 60
SAVES = 12
MAX_WINDOWS = 8
"""Held-out sequences of an evaluation, which is there for what it might disturb."""

Moment = Literal["start", "step", "save"]
"""Before the first step of a process, in a step or what follows it, while a checkpoint has no manifest."""


@dataclass(frozen=True, slots=True)
class Aim:
    """When to kill: once the run has reached `step`, `fraction` (0 to 1) into that moment.

    A save can be too short to be seen: at `latest_step` it is killed in any case.
    """

    moment: Moment
    step: int
    latest_step: int
    fraction: float


def aims(kills: int, *, steps: int, every: int, seed: int) -> list[Aim]:
    """Random moments over the whole run, in its order."""
    generator = random.Random(seed)
    last = max(1, steps - 2 * every - 1)
    at = sorted(generator.randint(1, last) for _ in range(kills))
    kinds: tuple[Moment, ...] = ("save", "step", "save", "step", "start")
    moments = [kinds[i % len(kinds)] for i in range(kills)]
    generator.shuffle(moments)
    return [Aim(m, step, step + 2 * every, generator.random()) for m, step in zip(moments, at)]


def short_settings(source: Path, overrides: tuple[str, ...], *, steps: int | None) -> Settings:
    """Of a config file or a run directory. Raises `UsageError`."""
    file = source / "config.yaml" if source.is_dir() else source
    if source.is_dir() and not file.is_file():
        do = "give the run directory of `hotloop train`, or a config file"
        raise UsageError("not a run: it has no config.yaml", where=str(source), do=do)
    settings = load_settings(file, overrides)
    config, schedule = settings.config, settings.config.schedule
    steps = steps or min(config.train.steps, DEFAULT_STEPS)
    falling = round(schedule.decay_fraction * steps) if schedule.name == "wsd" else 0
    every = max(1, steps // SAVES)
    warmup = min(schedule.warmup_steps, steps // 10, steps - falling)
    changes = {
        "train.steps": steps,
        "schedule.warmup_steps": warmup,
        "checkpoint.every_steps": every,
        "eval.every_steps": 2 * every + 1 if config.eval.every_steps else 0,
        "checkpoint.notices": "none",
        "eval.windows": min(config.eval.windows, MAX_WINDOWS),
        "checkpoint.upload": None,  # it would be another run in the user's place
        **{f"logging.{tracker}": False for tracker in ("tensorboard", "wandb", "mlflow")},
    }
    return settings.with_values(changes, origin="hotloop verify-resume")


def shared_by(settings: Settings, ranks: int) -> Settings:
    """The same step for several processes. Raises `UsageError` where they cannot share it evenly."""
    train = settings.config.train
    if train.grad_accum_steps % ranks == 0:
        return settings
    if train.microbatch % ranks or settings.config.data.layout == "bucket":
        raise UsageError(f"a step cannot be shared evenly by {ranks} processes", where="--ranks")
    size, num = train.microbatch // ranks, train.grad_accum_steps * ranks
    split = {"train.microbatch": size, "train.grad_accum_steps": num}
    return settings.with_values(split, origin="hotloop verify-resume")
