"""Leaving out lines of a running script."""

from __future__ import annotations

import builtins
import logging
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop.optimizations.hooks import TORCH, after_first_step
from hotloop.optimizations.live_report import Report
from hotloop.probe.attach.sites import caller, file_and_line
from hotloop.probe.entry import around_call
from hotloop.probe.imports import after_import

MOST_PLACES = 20
"""Named in the report; more are left out as well, without a word each."""
RETURNING_NOTHING = ("log_metric", "log_metrics", "log_params")
"""Of mlflow: what may be left out without the script seeing it."""
Says = Callable[[tuple[Any, ...], dict[str, Any]], bool]


class Throttle:
    """Lets the first and every `every`-th call from a place through."""

    def __init__(self, every: int, report: Report) -> None:
        self._every = every
        self._report = report
        self._calls: Counter[Any] = Counter()
        self.trains = False
        """A step was made: what is written from here on belongs to the loop."""

    def around(
        self, what: str, *, may_go: Says | None = None, within: str = ""
    ) -> Callable[..., Any]:
        """For `entry.around_call`. may_go: whether these arguments only say something. within: the
        library that it belongs to, whose own frames are not the place."""
        passing = (logging.__file__, TORCH, *filter(None, [within]))

        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.trains or (may_go is not None and not may_go(args, kwargs)):
                return original(*args, **kwargs)
            frame = caller(passing=passing)
            key = (what, frame and frame.f_code, frame and frame.f_lasti)
            self._calls[key] += 1
            if self._calls[key] % self._every == 1:
                return original(*args, **kwargs)
            if self._calls[key] == 2 and len(self._calls) <= MOST_PLACES:
                self._report.applied(f"{what} at {file_and_line(frame)}")
            return None

        return around


def _to_the_terminal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Not into a file: that may be what the script is there to write."""
    return kwargs.get("file") in (None, sys.stdout, sys.stderr)


def apply(value: Any, report: Report) -> None:
    """Put in place now; nothing is left out before the first step."""
    throttle = Throttle(int(value), report)

    def step_ended(optimizer: Any) -> None:
        throttle.trains = True

    def later(path: str, *names: str) -> Callable[[Any], None]:
        def hook(module: Any) -> None:
            owner = getattr(module, path) if path else module
            within = str(Path(module.__file__ or "").parent)
            for name in names or [n for n in dir(owner) if n.startswith("add_")]:
                what = f"{path or module.__name__}.{name}"
                around_call(owner, name, throttle.around(what, within=within))

        return hook

    around_call(builtins, "print", throttle.around("print", may_go=_to_the_terminal))
    around_call(logging.Logger, "callHandlers", throttle.around("logging"))
    after_import(
        {
            "torch.utils.tensorboard.writer": later("SummaryWriter"),
            "tensorboardX.writer": later("SummaryWriter"),
            "wandb.sdk.wandb_run": later("Run", "log"),
            "mlflow.tracking.fluent": later("", *RETURNING_NOTHING),
            "tqdm.std": later("tqdm", "refresh"),
        },
        lambda name, error: report.refused(f"{name}: {error}"),
    )
    after_first_step(step_ended, report)
