"""`hotloop.watch` as one of the trackers of an `Accelerator`."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker

from hotloop.api.watched import Watched
from hotloop.core.errors import UsageError
from hotloop.integrations.session import Session


class AccelerateWatch(Session, GeneralTracker):  # type: ignore[misc]
    """`Accelerator(log_with=[AccelerateWatch(), "tensorboard"])`: from `init_trackers` to `end_training`.

    `hotloop/*` is added to what `accelerator.log` is given, for the trackers that are named after this one. After an
    error nobody calls `end_training`: what was seen is said when the process ends, or trackers begin again, also those
    of another `Accelerator`. Arguments as of `Session`.
    """

    name = "hotloop"
    requires_logging_directory = False

    def __init__(
        self, *, steps: int | None = 200, out: str | Path | None = None, show: bool = True
    ) -> None:
        Session.__init__(self, steps=steps, out=out, show=show)
        if not hasattr(GeneralTracker, "start"):
            what = "this accelerate is too old: its trackers are not told when a training begins"
            raise UsageError(what, do="pip install -U accelerate")
        GeneralTracker.__init__(self)

    @property
    def tracker(self) -> Watched | None:
        """What `accelerator.get_tracker("hotloop", unwrap=True)` gives."""
        return self.seen

    def start(self) -> None:
        """By `init_trackers`; where it is called again, once for each call so far."""
        if self._owner == _accelerator() and self._watching and self._watching.recent.none_ended:
            return
        self.leave(self._owner)  # which an error may have left behind
        self.begin(_accelerator())
        atexit.register(self.end)

    def log(self, values: dict[str, Any], step: int | None = None, **named: Any) -> None:
        """By `accelerator.log`."""
        if self._owner == _accelerator():
            self.end_after_bound()
            values.update(self.metrics())

    def finish(self) -> None:
        """By `end_training`."""
        if self._owner == _accelerator():
            atexit.unregister(self.end)
            self.leave(self._owner)


def _accelerator() -> int:
    """The id of the `Accelerator` that calls the caller, which is not told. Not itself: after an error it would stay."""
    return id(sys._getframe(2).f_locals.get("self"))
