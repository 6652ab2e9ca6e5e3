"""`hotloop.watch` around the fit of a Lightning Trainer."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from hotloop.integrations.session import Session


def _callback() -> Any:
    """The base class of callbacks, of the name under which Lightning is loaded: a Trainer refuses those of its other one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    first, second = sorted(names, key=lambda each: each not in sys.modules)
    try:
        return import_module(first).Callback
    except ModuleNotFoundError as missing:
        try:
            return import_module(second).Callback
        except ModuleNotFoundError:
            raise missing from None


class LightningWatch(Session, _callback()):  # type: ignore[misc]
    """`lightning.Trainer(callbacks=[LightningWatch()])`: what each step's time goes to, found out while it trains.

    `hotloop/*` goes to each of the Trainer's loggers, every `log_every_n_steps`. Arguments as of `Session`.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before data loaders are made."""
        if stage == "fit":
            self.begin(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *about: Any) -> None:
        """Enough may have been seen."""
        self.end_after_bound()
        every = trainer.log_every_n_steps  # 0: never
        is_whole = not trainer.fit_loop._should_accumulate()  # as Lightning asks before it logs
        if every and is_whole and (_step(trainer) + 1) % every == 0:
            self._log(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The fit is over, also one that made no step; the loggers still take values."""
        if trainer is self._owner:
            self.leave(trainer)
            self._log(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ctrl-C, too, which Lightning keeps from the caller."""
        self.leave(trainer, exception)

    def _log(self, trainer: Any) -> None:
        if found := self.metrics():
            for logger in trainer.loggers:
                logger.log_metrics(found, step=_step(trainer))


def _step(trainer: Any) -> int:
    """As Lightning counts for loggers: `global_step` has one for each optimizer."""
    step: int = trainer.fit_loop.epoch_loop._batches_that_stepped
    return step
