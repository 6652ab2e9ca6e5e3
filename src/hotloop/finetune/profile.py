"""A rehearsal of a fine-tuning in minutes: a sample of its examples, a few steps, and everything that the whole job does."""

from __future__ import annotations

import hashlib
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.files import write_json
from hotloop.core.finetune_config import FinetuneConfig
from hotloop.core.progress import Progress, silent
from hotloop.core.settings import Settings
from hotloop.core.step import read_steps
from hotloop.finetune.conduct import MODEL_DIRECTORY, Steps, with_steps
from hotloop.finetune.examples import read_dataset
from hotloop.finetune.start import finetune

STEPS = 8
"""Half of them before the checkpoint that is gone on from."""
PROFILE_FILE = "profile.json"


@dataclass(frozen=True, slots=True)
class Profile:
    """What the rehearsal found, and what the whole job takes by it."""

    examples: int
    steps: int
    first_loss: float | None
    last_loss: float | None
    evaluated: bool
    resumed_from: int
    resumed_equal: bool
    """Gone on with from its checkpoint it came to the same model, to the last bit."""
    step_s: float | None
    """Median, evaluations and saves left out; `None` where too few steps were made to tell."""
    full_examples: int
    full_steps: int
    full_s: float | None
    """Of the steps of the whole job."""
    model: str
    schema: str = "hotloop.profile/1"


def rehearse(
    settings: Settings[FinetuneConfig],
    directory: Path,
    *,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Profile:
    """Raises whatever the whole job would raise, and `UsageError` for a `directory` that holds something else."""
    task, per_step = settings.config.task, settings.config.sequences_per_step
    whole = read_dataset(settings.config.data, task=task)
    settings_of_all = with_steps(settings, len(whole.train), settings.config.data.file)
    short = _shortened(settings, per_step)
    dataset = read_dataset(short.config.data, task=task)
    _emptied(directory)
    first = finetune(short, dataset, directory, Steps(progress=progress, warn=warn))
    model = directory / MODEL_DIRECTORY / "model.safetensors"
    records = list(read_steps(directory / "steps.jsonl"))
    wanted = hashlib.sha256(model.read_bytes()).digest()
    # It says the same as before.
    again = finetune(short, dataset, directory, Steps(from_step=STEPS // 2, progress=progress))
    plain = [
        record.wall_s for record in records[1:] if not {"eval", "checkpoint"} & set(record.tags)
    ]
    step_s = statistics.median(plain) if plain else None
    full_steps = settings_of_all.config.train.steps
    found = Profile(
        examples=len(dataset.train),
        steps=len(records),
        first_loss=records[0].loss,
        last_loss=first.training.loss,
        evaluated=first.scores is not None,
        resumed_from=STEPS // 2,
        resumed_equal=hashlib.sha256(model.read_bytes()).digest() == wanted
        and again.training.loss == first.training.loss,
        step_s=step_s,
        full_examples=len(whole.train),
        full_steps=full_steps,
        full_s=None if step_s is None else step_s * full_steps,
        model=str(directory / MODEL_DIRECTORY),
    )
    write_json(directory / PROFILE_FILE, found)
    return found


def _shortened(settings: Settings[FinetuneConfig], per_step: int) -> Settings[FinetuneConfig]:
    config = settings.config
    half = STEPS // 2
    limit = STEPS * per_step
    changes = {
        "data.limit": min(limit, config.data.limit or limit),
        "train.steps": STEPS,
        "schedule.warmup_steps": min(config.schedule.warmup_steps, half),
        "eval.every_steps": half if config.eval.every_steps or config.eval.every_epochs else 0,
        "eval.every_epochs": None,
        "eval.patience": None,
        "checkpoint.every_steps": half,
        "checkpoint.background": False,
        "checkpoint.upload": None,
    }
    return settings.with_values(changes, origin="detected: `--profile test`")


def _emptied(directory: Path) -> None:
    """A rehearsal begins anew. Raises `UsageError` for a directory that holds anything but one."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not (directory / PROFILE_FILE).is_file():
        raise UsageError(
            "this directory holds something else than a rehearsal",
            where=str(directory),
            do="give another --out, or remove it",
        )
    shutil.rmtree(directory)
