"""TensorBoard, Weights & Biases and MLflow: steps and evaluations, sent by a thread that training never waits for.

Training puts a step's numbers into a queue of limited length and goes on. The thread sends them, tries
again when the tracker fails, and says so once. What does not fit or cannot be sent by the end is counted
and said; nothing is lost by it, since the run directory holds everything.
"""

from __future__ import annotations

import importlib
import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from hotloop.core.config import LoopConfig
from hotloop.core.errors import UsageError, pip_install
from hotloop.core.settings import Settings
from hotloop.core.step import StepRecord
from hotloop.train.evaluate import Evaluation, read_evaluations
from hotloop.train.run import Run
from hotloop.train.tracker_clients import (
    AUTO,
    EXTRAS,
    SECONDS,
    MlflowTracker,
    Point,
    TensorboardTracker,
    Tracker,
    WandbTracker,
    one_line,
)

CAPACITY = 20_000
"""Points that may wait for a slow tracker: some 20 MB."""
BATCH = 50
GATHER_S = 1.0
"""Points are gathered this long, so that a request carries many."""
RETRY_S = 60.0
"""Longest wait between two tries."""
CLOSE_S = 40.0
"""Longest that the end of a run waits for what is still to be sent."""


def refuse_missing_trackers(config: LoopConfig) -> None:
    """Raises `UsageError` when a tracker is asked for whose package is not installed."""
    for name, spoken in EXTRAS.items():
        if getattr(config.logging, name) not in (False, AUTO) and not is_installed(name):
            do = f"{pip_install(name)}, or set logging.{name}=false"
            raise UsageError(f"{spoken} is not installed", where=f"logging.{name}", do=do)


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@contextmanager
def trackers(
    settings: Settings[Any], run: Run, *, measuring: bool, warn: Callable[[str], None]
) -> Iterator[tuple[Callable[[StepRecord], None], ...]]:
    """The observers to train with: one for each tracker asked for, none in a process that is measured."""
    senders = [] if measuring else [_sender(name, settings, run, warn) for name in EXTRAS]
    asked = [sender for sender in senders if sender is not None]
    exit_code = 0
    try:
        yield tuple(asked)
    except BaseException as error:
        exit_code = int(getattr(error, "exit_code", 1))
        raise
    finally:
        for sender in asked:
            sender.finish(exit_code)


def _sender(
    name: str, settings: Settings[Any], run: Run, warn: Callable[[str], None]
) -> Sender | None:
    asked = getattr(settings.config.logging, name)
    if not asked or (asked == AUTO and not is_installed(name)):
        return None
    try:
        tracker = build(name, settings, run, warn)
    except Exception as error:  # noqa: BLE001 - a broken installation must not stop a run
        warn(f"{EXTRAS[name]} is not used: it cannot be imported ({one_line(error)})")
        return None
    return Sender(EXTRAS[name], tracker, NewEvaluations(run), warn)


def build(name: str, settings: Settings[Any], run: Run, warn: Callable[[str], None]) -> Tracker:
    """Imports the tracker's package here and not in its thread: that holds the interpreter for a second."""
    importlib.import_module("torch.utils.tensorboard" if name == "tensorboard" else name)
    if name == "tensorboard":
        return TensorboardTracker(run.directory, first_step=run.first_step)
    if name == "wandb":
        return WandbTracker(settings, run.directory, warn)
    return MlflowTracker(settings, run.directory)


class Sender:
    """An observer that hands a step's numbers to its thread."""

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        evaluations: NewEvaluations,
        warn: Callable[[str], None],
        *,
        capacity: int = CAPACITY,
        close_s: float = CLOSE_S,
    ) -> None:
        self._name = name
        self._tracker = tracker
        self._evaluations = evaluations
        self._warn = warn
        self._close_s = close_s
        self._queue: queue.Queue[Point] = queue.Queue(capacity)
        self._put = self._sent = self._dropped = 0
        self._complained = False
        self._ended = threading.Event()
        self._exit_code = 0
        self._thread = threading.Thread(target=self._work, name=f"hotloop-{name}", daemon=True)
        self._thread.start()

    def __call__(self, record: StepRecord) -> None:
        self._offer(Point(record.step, of_step(record)))
        self._offer_evaluations(self._evaluations.told_by(record))

    def finish(self, exit_code: int) -> None:
        """Send what is left, for at most `close_s`; then say what was not sent."""
        self._offer_evaluations(self._evaluations.left())
        self._exit_code = exit_code
        self._ended.set()
        self._thread.join(self._close_s)
        missing = self._put - self._sent + self._dropped
        if missing:
            why = f", {self._dropped} of them because it was too slow" if self._dropped else ""
            self._warn(
                f"{self._name}: {missing} of {self._put + self._dropped} points were not sent{why}; "
                "the run directory holds all of them"
            )
        elif self._thread.is_alive():
            self._warn(f"{self._name} did not close the run within {self._close_s:g} s")

    def _offer_evaluations(self, found: list[Evaluation]) -> None:
        for each in found:
            losses = {"held_out/loss": each.loss, "held_out/averaged_loss": each.averaged_loss}
            self._offer(Point(each.step, _known(losses)))

    def _offer(self, point: Point) -> None:
        try:
            self._queue.put_nowait(point)
            self._put += 1
        except queue.Full:
            self._dropped += 1

    def _work(self) -> None:
        if not self._try_until_done(self._tracker.open):
            return
        while points := self._gather():
            if not self._try_until_done(partial(self._tracker.send, points)):
                return
            self._sent += len(points)
        self._try_until_done(partial(self._tracker.close, self._exit_code))

    def _gather(self) -> list[Point]:
        """Up to `BATCH` points, waited for; none once training has ended and all are taken."""
        while True:
            # Asked before the queue is emptied: nothing is put into it after the end.
            few = self._queue.qsize() < BATCH
            ended = self._ended.wait(GATHER_S) if few else self._ended.is_set()
            points: list[Point] = []
            while len(points) < BATCH:
                try:
                    points.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            if points or ended:
                return points

    def _try_until_done(self, action: Callable[[], None]) -> bool:
        """False when it still failed after training had ended."""
        wait_s = 1.0
        while True:
            last = self._ended.is_set()
            try:
                action()
                return True
            except Exception as error:  # noqa: BLE001 - whatever a tracker raises, training goes on
                if not self._complained:
                    self._complained = True
                    then = "" if last else "; training goes on, and it is tried again"
                    self._warn(f"{self._name} failed ({one_line(error)}){then}")
            if last:
                return False
            self._ended.wait(wait_s)
            wait_s = min(2 * wait_s, RETRY_S)


def of_step(record: StepRecord) -> dict[str, float]:
    """Loss, gradient norm, rate and seconds of a step, as far as they are known."""
    values: dict[str, float | None] = {
        "loss": record.loss,
        "grad_norm": record.grad_norm,
        "learning_rate": record.learning_rate,
        SECONDS: record.wall_s,
        **{f"seconds/{phase}": seconds for phase, seconds in record.host.items()},
    }
    if record.tokens and record.wall_s > 0:
        values["tokens_per_s"] = record.tokens / record.wall_s
    if "skipped" in record.tags:
        values["skipped"] = 1.0
    if "spike" in record.tags:
        values["spike"] = 1.0
    return _known(values)


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


class NewEvaluations:
    """Evaluations that were made since it was last asked.

    The record after an evaluation carries the tag `eval`, and the evaluation is in the file by then: so
    an observer of steps needs no second way to hear of it.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        # A process killed after the last one may not have told of it.
        self._after = run.first_step - 1

    def told_by(self, record: StepRecord) -> list[Evaluation]:
        self._after = min(self._after, record.step)  # after a rollback the steps come again
        return self.left() if "eval" in record.tags else []

    def left(self) -> list[Evaluation]:
        """Those after the last record as well: ask at the end."""
        found = [e for e in read_evaluations(self._run) if e.step > self._after]
        self._after = max((e.step for e in found), default=self._after)
        return found
