"""Evaluations on held-out data, and the file that keeps them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.files import storing, write_atomically
from hotloop.core.untrusted import TORN, object_lines
from hotloop.train.interruption import StopRequest
from hotloop.train.run import Run


@dataclass(frozen=True, slots=True)
class Evaluation:
    step: int
    loss: float
    """Mean over targets, in nats."""
    num_targets: int
    averaged_loss: float | None = None
    """With the averaged weights; `None` where there are none (yet), and not written then."""
    metrics: dict[str, Any] | None = None
    """Other measures of the task, of the averaged weights where there are any."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for what a damaged line may hold instead of numbers."""
        losses = [self.loss] if self.averaged_loss is None else [self.loss, self.averaged_loss]
        counts = (self.step, self.num_targets)
        if any(type(count) is not int or count < 0 for count in counts):
            raise ValueError("`step` and `num_targets` must be integers, 0 or more")
        if any(type(loss) not in (int, float) for loss in losses):
            raise ValueError("a loss must be a number")
        if not isinstance(self.metrics, dict | None):
            raise ValueError("`metrics` must be an object")


def evaluate(run: Run, step: int, stop: StopRequest) -> Evaluation | None:
    """With the present weights and, where there are any, the averaged ones; recorded. `None` when nothing is held out.

    Raises `EvaluationCut`, on all ranks, and `EnvironmentFailed` on a full disk.
    """
    found = run.work.evaluate(run, stop)
    if found is None:
        return None
    evaluation = Evaluation(step, found.loss, found.num_targets, metrics=found.metrics)
    if run.average is not None and run.average.num_updates:
        with run.average.in_place():
            averaged = run.work.evaluate(run, stop)
        assert averaged is not None
        evaluation = replace(evaluation, averaged_loss=averaged.loss, metrics=averaged.metrics)
    if run.group.ranks.is_first:
        _append(run, evaluation)
    return evaluation


def is_evaluated(run: Run) -> bool:
    """False if the evaluation that is due at `run.first_step` was cut short, or lost with its process."""
    every, step = run.config.eval.every_steps, run.first_step
    due = every > 0 < step and (step % every == 0 or step == run.config.train.steps)
    due = due and run.work.has_held_out
    return not due or run.group.decided(lambda: step in [e.step for e in read_evaluations(run)])


def _line(evaluation: Evaluation) -> str:
    fields = {key: value for key, value in asdict(evaluation).items() if value is not None}
    return json.dumps(fields) + "\n"


def _append(run: Run, evaluation: Evaluation) -> None:
    path = run.evals_file
    with storing(path, "record an evaluation"), path.open("a", encoding="utf-8") as file:
        file.write(_line(evaluation))
        file.flush()
        os.fsync(file.fileno())  # before the checkpoint behind which nobody makes it again


def read_evaluations(run: Run) -> list[Evaluation]:
    """Raises `UsageError` for a damaged line; a torn last one is left out."""
    if not run.evals_file.exists():
        return []
    evaluations = []
    try:
        for number, found in object_lines(run.evals_file, finite=False):
            if found is TORN:
                break
            try:
                if isinstance(found, str):
                    raise ValueError(found)
                evaluations.append(Evaluation(**found))
            except (ValueError, TypeError) as error:
                raise UsageError(
                    f"damaged evaluation: {error}",
                    where=f"{run.evals_file}:{number}",
                    do="delete that line to read the rest",
                ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read the evaluations: {error.strerror}",
            where=str(run.evals_file),
            do="remove it, or choose another --out",
        ) from error
    return evaluations


def keep_evaluations_until(run: Run, step: int) -> None:
    """Drop evaluations after `step`: a resumed run makes them again."""
    kept = [_line(e) for e in read_evaluations(run) if e.step <= step]
    if run.evals_file.exists():
        write_atomically(run.evals_file, "".join(kept).encode())
