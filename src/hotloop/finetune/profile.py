"""A rehearsal of a fine-tuning in minutes: a sample of its examples, a few steps, and everything that the whole job does."""

from __future__ import annotations

import hashlib
import shutil
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.core.causal_config import CausalConfig
from hotloop.core.errors import UsageError
from hotloop.core.files import write_json
from hotloop.core.progress import Progress, silent
from hotloop.core.settings import Settings
from hotloop.core.step import read_steps
from hotloop.core.untrusted import object_lines
from hotloop.finetune.causal_start import finetune_decoder, read_examples
from hotloop.finetune.chats import read_sources
from hotloop.finetune.conduct import MODEL_DIRECTORY, Finetuned, Steps, with_steps
from hotloop.finetune.examples import read_dataset
from hotloop.finetune.pretrained import check_model
from hotloop.finetune.start import finetune
from hotloop.train.work import HeldOut

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
    before: Mapping[str, float] | None
    """Loss and measures on the held-out examples of the sample, before the first step; `None` where nothing is evaluated."""
    after: Mapping[str, float] | None
    """The same after the last."""
    resumed_from: int
    resumed_equal: bool
    """Gone on with from its checkpoint it came to the same model, to the last bit."""
    step_s: float | None
    """Median, evaluations and saves left out; `None` where too few steps were made to tell."""
    examples_per_s: float | None
    tokens_per_s: float | None
    full_examples: int
    full_steps: int
    full_s: float | None
    """Of the steps of the whole job."""
    model: str
    is_adapter: bool
    schema: str = "hotloop.profile/1"


def rehearse(
    settings: Settings[Any],
    directory: Path,
    *,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Profile:
    """Raises whatever the whole job would raise, and `UsageError` for a `directory` that holds something else."""
    check_model(settings.config.model.path, trusted=settings.config.model.trust_remote_code)
    per_step = settings.config.sequences_per_step
    train: Callable[[Steps], Finetuned]
    if isinstance(settings.config, CausalConfig):
        settings, found = read_examples(settings, read_sources(settings.config), warn)
        sample = found.sample(STEPS * per_step, settings.config.data.seed)
        num, num_whole = len(sample.train), len(found.train)
        train = partial(finetune_decoder, _shortened(settings), sample, directory)
    else:
        short, task = _shortened(settings), settings.config.task
        num_whole = len(read_dataset(settings.config.data, task=task).train)
        dataset = read_dataset(short.config.data, task=task)
        num, train = len(dataset.train), partial(finetune, short, dataset, directory)
    settings_of_all = with_steps(settings, num_whole, settings.config.data.file)
    _emptied(directory)
    write_json(directory / PROFILE_FILE, {})  # what is left of an interrupted one is known by it
    evaluates = settings.config.eval.every_steps or settings.config.eval.every_epochs
    starts: list[HeldOut] = []
    first = train(Steps(progress=progress, warn=warn, at_start=starts.append if evaluates else None))  # fmt: skip
    records = list(read_steps(directory / "steps.jsonl"))
    wanted, after = _weights(directory), _last_evaluation(directory)
    # It says the same as before.
    again = train(Steps(from_step=STEPS // 2, progress=progress))
    plain = [
        record.wall_s for record in records[1:] if not {"eval", "checkpoint"} & set(record.tags)
    ]
    step_s = statistics.median(plain) if plain else None
    full_steps = settings_of_all.config.train.steps
    profile = Profile(
        examples=num,
        steps=len(records),
        first_loss=records[0].loss,
        last_loss=first.training.loss,
        evaluated=first.scores is not None,
        before=_numbers(starts[0].loss, starts[0].metrics) if starts else None,
        after=after,
        resumed_from=STEPS // 2,
        resumed_equal=_weights(directory) == wanted and again.training.loss == first.training.loss,
        step_s=step_s,
        examples_per_s=None if step_s is None else per_step / step_s,
        tokens_per_s=first.training.tokens_per_s,
        full_examples=num_whole,
        full_steps=full_steps,
        full_s=None if step_s is None else step_s * full_steps,
        model=str(directory / MODEL_DIRECTORY),
        is_adapter=first.is_adapter,
    )
    write_json(directory / PROFILE_FILE, profile)
    return profile


def _weights(directory: Path) -> str:
    """A checksum of all that was exported: a model or an adapter, perhaps in several files."""
    digest = hashlib.sha256()
    for file in sorted((directory / MODEL_DIRECTORY).glob("*.safetensors")):
        digest.update(file.name.encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _last_evaluation(directory: Path) -> Mapping[str, float] | None:
    """With averaged weights where there are any, as they are what is exported."""
    file = directory / "evals.jsonl"
    found = [each for _, each in object_lines(file, finite=False) if isinstance(each, dict)] if file.exists() else []  # fmt: skip
    if not found:
        return None
    return _numbers(found[-1].get("averaged_loss", found[-1]["loss"]), found[-1].get("metrics"))


def _numbers(loss: Any, metrics: Mapping[str, Any] | None) -> dict[str, float]:
    measures = {name: value for name, value in (metrics or {}).items() if isinstance(value, float)}
    return {"loss": loss, **measures}


def _shortened(settings: Settings[Any]) -> Settings[Any]:
    config, schedule, half = settings.config, settings.config.schedule, STEPS // 2
    falling = max(1, round(schedule.decay_fraction * STEPS)) if schedule.name == "wsd" else 0
    limit = STEPS * config.sequences_per_step
    changes = {
        "train.steps": STEPS,
        "schedule.warmup_steps": min(schedule.warmup_steps, half, STEPS - falling),
        "eval.every_steps": half if config.eval.every_steps or config.eval.every_epochs else 0,
        "eval.every_epochs": None,
        "eval.patience": None,
        "checkpoint.every_steps": half,
        "checkpoint.background": False,
        "checkpoint.upload": None,
    }
    if not isinstance(config, CausalConfig):
        changes["data.limit"] = min(limit, config.data.limit or limit)
    if falling:  # `wsd` is refused where that is less than a step
        changes["schedule.decay_fraction"] = falling / STEPS
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
