"""Step records and evaluations as TensorBoard event files, through an observer."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.step import StepRecord
from hotloop.train import scalars
from hotloop.train.evaluate import Evaluation
from hotloop.train.run import Run

EVENTS = "tensorboard"
"""Directory of the event files, in the run directory."""


def refuse_missing_tensorboard(config: RunConfig) -> None:
    """Raises `UsageError` when event files are asked for and TensorBoard is not installed."""
    if config.logging.tensorboard is True and not _is_installed():
        raise UsageError(
            "TensorBoard is not installed",
            where="logging.tensorboard",
            do="pip install 'hotloop[tensorboard]', or set logging.tensorboard=false",
        )


@contextmanager
def event_writer(
    run: Run, *, measuring: bool
) -> Iterator[tuple[Callable[[StepRecord], None], ...]]:
    """The observer to train with, or none: not wanted, not installed, or a process that is measured."""
    if not run.config.logging.tensorboard or not _is_installed() or measuring:
        yield ()
        return
    events = _Events(run)
    try:
        yield (events.write,)
    finally:
        events.close()


class _Events:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._evaluations = scalars.NewEvaluations(run)
        self._writer = self._open(run.first_step)
        self._newest = run.first_step - 1

    def _open(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that are made once more, after a kill or a rollback, replace those drawn before.
        return SummaryWriter(str(self._run.directory / EVENTS), purge_step=step)

    def write(self, record: StepRecord) -> None:
        if record.step <= self._newest:
            self._writer.close()
            self._writer = self._open(record.step)
        self._newest = record.step
        self._add(scalars.of_step(record), record.step)
        self._add_evaluations(self._evaluations.told_by(record))

    def close(self) -> None:
        self._add_evaluations(self._evaluations.left())
        self._writer.close()

    def _add_evaluations(self, found: list[Evaluation]) -> None:
        for evaluation in found:
            self._add(scalars.of_evaluation(evaluation), evaluation.step)

    def _add(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)


def _is_installed() -> bool:
    return importlib.util.find_spec("tensorboard") is not None
