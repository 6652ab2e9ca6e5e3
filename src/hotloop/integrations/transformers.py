"""`hotloop.watch` around `transformers.Trainer.train`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from hotloop.integrations.session import Session


class TransformersWatch(Session, TrainerCallback):  # type: ignore[misc]
    """`Trainer(..., callbacks=[TransformersWatch()])`: what each step's time goes to, found out while it trains.

    `hotloop/*` goes where `loss` goes. Making one wraps `Trainer.train`, for all Trainers: that is where an error is
    seen, and a data loader as it is made. Arguments as of `Session`.
    """

    def __init__(
        self, *, steps: int | None = 200, out: str | Path | None = None, show: bool = True
    ) -> None:
        super().__init__(steps=steps, out=out, show=show)
        if not hasattr(Trainer.train, "is_watched"):
            Trainer.train = _watched(Trainer.train)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Enough may have been seen."""
        self.end_after_bound()

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        **named: Any,
    ) -> None:
        """Add to what the loggers, which are called after this, are about to log; not to an evaluation's values."""
        logged = (logs or {}).keys()
        is_last = {"train_loss", "train_runtime"} <= logged  # the second alone may be in each
        if logs is None or not (is_last or "loss" in logged):
            return
        if is_last:
            self.end()
        found = self.metrics()
        logs.update(found)
        for kept in state.log_history[-1:]:  # a Trainer with a `log` of its own may keep none
            kept.update(found)


def _watched(train: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(train)
    def watched(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        callbacks = trainer.callback_handler.callbacks
        callbacks.sort(
            key=lambda each: not isinstance(each, TransformersWatch)
        )  # before the loggers
        with ExitStack() as watching:
            for each in callbacks:
                if isinstance(each, TransformersWatch):
                    each.begin(trainer)
                    watching.push(lambda kind, error, trace, each=each: each.leave(trainer, error))
            return train(trainer, *args, **kwargs)

    watched.is_watched = True  # type: ignore[attr-defined]
    return watched
