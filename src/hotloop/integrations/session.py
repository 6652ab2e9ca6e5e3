"""One `hotloop.watch` per training of a framework, begun and ended by its callback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hotloop.api.watched import Watched, is_another_process
from hotloop.core.errors import UsageError
from hotloop.core.judgement import Finding


class Session:
    """What the callbacks share. Afterwards `findings`, and `seen`, which is what `hotloop.watch` gives.

    steps: look no longer than at so many, after the warm-up; what was found is printed then, and the training goes on
    without being watched; `None`: to its end. out: a new directory to keep what was recorded in; each further training
    with the same callback takes `out-2`, `out-3`, ... show: print what was found.
    """

    def __init__(
        self, *, steps: int | None = 200, out: str | Path | None = None, show: bool = True
    ) -> None:
        Watched(steps=steps, out=out, show=show)  # what is wrong with them is raised here
        self._steps, self._out, self._shows = steps, out, show
        self._num_trainings = 0
        self._owner: Any = None
        """Whose training it is, also after enough was seen of it."""
        self._watching: Watched | None = None
        self._cost: float | None = None
        """Share of the time that watching took, until a logger was given it."""
        self.seen: Watched | None = None
        """Of the newest training; `None` before the first."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What could be better, the largest gain first. Raises `UsageError` until it was found out."""
        if self.seen is None and is_another_process():  # to Accelerate it is no tracker there
            return ()
        if self.seen is None:
            raise UsageError("nothing was seen yet: no training has begun")
        return self.seen.findings

    def begin(self, owner: Any) -> None:
        """Watch from here on. Raises `UsageError` before the training of another owner has ended, and as `hotloop.watch`."""
        if self._owner is not None:
            raise UsageError(
                f"this {type(self).__name__} watches another training, which has not ended",
                do="train one after the other; or give only one of them a callback, of its own",
            )
        number = self._num_trainings + 1
        out = self._out if self._out is None or number == 1 else f"{self._out}-{number}"
        watching = Watched(steps=self._steps, out=out, show=self._shows)
        watching.__enter__()
        self._owner, self.seen, self._watching = owner, watching, watching
        self._num_trainings = number
        self._cost = None

    def leave(self, owner: Any, error: BaseException | None = None) -> None:
        """The training of `owner` has ended; nothing where it was another one's."""
        if owner is self._owner:
            self._owner = None
            self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """Say what was seen, once, and let go of torch; the training itself never fails here."""
        watching, self._watching = self._watching, None
        if watching is None:
            return
        if self._shows and not watching.is_idle:
            sys.stderr.write("\n")  # a progress bar stands in the line
        watching.__exit__(type(error) if error else None, error, None)
        self._cost = watching.cost

    def end_after_bound(self) -> None:
        """End where all the steps that were asked for have been seen."""
        if self._watching is not None and self._watching.is_enough:
            self.end()

    def metrics(self) -> dict[str, float]:
        """What a logger is given: of the steps since the last call, and once, at the end, what watching cost."""
        if self.seen is None:
            return {}
        found = self.seen.recent.take()
        if self._cost is not None:
            found["watch_cost_fraction"], self._cost = self._cost, None
        return {f"hotloop/{name}": value for name, value in found.items()}
