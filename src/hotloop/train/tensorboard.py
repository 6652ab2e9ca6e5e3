"""Step records as TensorBoard event files, through an observer."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.step import StepRecord

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
    config: RunConfig, directory: Path, *, measuring: bool
) -> Iterator[tuple[Callable[[StepRecord], None], ...]]:
    """The observer to train with, or none: not wanted, not installed, or a process that is measured."""
    if not config.logging.tensorboard or not _is_installed() or measuring:
        yield ()
        return
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(directory / EVENTS))

    def write(record: StepRecord) -> None:
        values = {
            "loss": record.loss,
            "grad_norm": record.grad_norm,
            "learning_rate": record.learning_rate,
            "seconds/step": record.wall_s,
            **{f"seconds/{phase}": seconds for phase, seconds in record.host.items()},
        }
        if record.tokens:
            values["tokens_per_s"] = record.tokens / record.wall_s
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(name, value, record.step)

    try:
        yield (write,)
    finally:
        writer.close()


def _is_installed() -> bool:
    return importlib.util.find_spec("tensorboard") is not None
