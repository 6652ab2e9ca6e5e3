"""`hotloop.fit`: training started from a program or a notebook, in its own process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotloop.api.run import Run, note
from hotloop.core.errors import UsageError, not_installed
from hotloop.core.file_locks import refuse_busy
from hotloop.core.settings import load_settings
from hotloop.core.task_scores import TaskScores
from hotloop.runs.memory_end import memory_told


class Fitted(Run):
    """The run of a training that came to its end."""

    def __init__(self, directory: Path, outcome: Any) -> None:
        super().__init__(directory)
        self.steps: int = outcome.training.steps
        self.loss: float | None = outcome.training.loss
        """Of the last step."""
        self.held_out_loss: float | None = outcome.training.held_out_loss
        self.scores: TaskScores | None = outcome.scores
        """Accuracy, F1 and the like; `None` of a module of one's own, and where nothing was held out."""
        self.model = Path(outcome.model)
        """A directory for `from_pretrained`, or the file of the module's weights."""


def fit(
    model: Any,
    data: Any,
    task: str | None,
    validation: Any,
    loss: Any,
    collate: Any,
    epochs: int,
    batch: int | None,
    out: str | Path | None,
    settings: Mapping[str, Any] | None,
    stretch: bool,
) -> Fitted:
    """As `hotloop.fit`."""
    words: dict[str, Any] = {
        "train.epochs": epochs,
        **({} if batch is None else {"train.microbatch": batch}),
    }
    directory = Path("runs/fit" if out is None else out)
    if isinstance(model, (str, Path)):
        if task is None or not isinstance(data, (str, Path)):
            do = 'hotloop.fit("DIR", "tweets.csv", task="classification")'
            raise UsageError("a model directory is fine-tuned for a task, on a file", do=do)
        if loss is not None or collate is not None:
            raise UsageError("the task has its own loss", do="leave `loss` and `collate` out")
        words |= {"task": task, "data.file": str(data), "model.path": str(model)}
        words |= {} if validation is None else {"data.held_out": validation}
        from hotloop.finetune.job import settings_of, start

        found = settings_of(task, None, _overrides(words, settings))
        refuse_busy(directory)
        from hotloop.finetune.conduct import Steps

        with memory_told(directory, found, note):
            return Fitted(directory, start(found, directory, Steps(warn=note, stretch=stretch)))
    if task is not None:
        raise UsageError(
            "`task` is of model directories; what a module learns is its `loss`",
            do="leave it out, or name the directory of a transformers model",
        )
    return _fit_module(model, data, validation, loss, collate, directory, _overrides(words, settings), stretch)  # fmt: skip


def _fit_module(
    model: Any,
    data: Any,
    validation: Any,
    loss: Any,
    collate: Any,
    directory: Path,
    overrides: list[str],
    stretch: bool,
) -> Fitted:
    from hotloop.core.module_config import ModuleConfig

    try:
        from torch import nn
    except ModuleNotFoundError as error:
        raise not_installed("train", "hotloop.fit needs torch") from error
    if not isinstance(model, nn.Module):
        do = "give a torch.nn.Module, or the directory of a transformers model"
        raise UsageError(f"the model is of type {type(model).__name__}", do=do)
    found = load_settings(None, overrides, kind=ModuleConfig)
    refuse_busy(directory)
    from hotloop.finetune.conduct import Steps
    from hotloop.finetune.module import fit_module

    with memory_told(directory, found, note):
        outcome = fit_module(found, directory, model, data, validation, loss, collate, Steps(warn=note, stretch=stretch))  # fmt: skip
    return Fitted(directory, outcome)


def _overrides(words: Mapping[str, Any], settings: Mapping[str, Any] | None) -> list[str]:
    given = {**words, **(settings or {})}
    return [f"{key}={json.dumps(value, default=_plain)}" for key, value in given.items()]


def _plain(value: Any) -> Any:
    """Of a number of numpy or torch, and of a path."""
    return value.item() if hasattr(value, "item") else str(value)
