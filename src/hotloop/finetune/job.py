"""Which fine-tuning a task asks for. Loads nothing heavy before settings and data are known to be good."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from hotloop.core.causal_config import CAUSAL_TASKS, CausalConfig
from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ALIASES, FinetuneConfig, Task
from hotloop.core.settings import Settings, load_settings

if TYPE_CHECKING:
    from hotloop.finetune.conduct import Finetuned, Steps


@dataclass(frozen=True, slots=True)
class EncoderJob:
    settings: Settings[FinetuneConfig]

    def start(self, directory: Path, steps: Steps) -> Finetuned:
        from hotloop.finetune.examples import read_dataset

        config = self.settings.config
        dataset = read_dataset(config.data, per_step=config.sequences_per_step, task=config.task)
        from hotloop.finetune.start import finetune

        return finetune(self.settings, dataset, directory, steps)


@dataclass(frozen=True, slots=True)
class DecoderJob:
    settings: Settings[CausalConfig]

    def start(self, directory: Path, steps: Steps) -> Finetuned:
        from hotloop.finetune.chats import read_sources

        sources = read_sources(self.settings.config)
        from hotloop.finetune.causal_start import finetune_decoder

        return finetune_decoder(self.settings, sources, directory, steps)


def job_of(task: str, config: Path | None, overrides: Sequence[str]) -> EncoderJob | DecoderJob:
    """overrides: `key=value`, the task among them where there is no config. Raises `UsageError`."""
    known = [*get_args(Task), *ALIASES, *CAUSAL_TASKS]
    if config is None and task not in known:
        close = difflib.get_close_matches(task, known, 1)
        raise UsageError(
            f"no task `{task[:80]}`",
            where="--task",
            do=f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}",
        )
    if task in CAUSAL_TASKS:
        return DecoderJob(load_settings(config, overrides, kind=CausalConfig))
    return EncoderJob(load_settings(config, overrides, kind=FinetuneConfig))
