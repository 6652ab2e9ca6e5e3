"""What a tracker is told: a step or an evaluation as named numbers. One wording for all of them."""

from __future__ import annotations

from hotloop.core.step import StepRecord
from hotloop.train.evaluate import Evaluation, read_evaluations
from hotloop.train.run import Run

SECONDS = "seconds/step"
"""In what is told of every step, and of nothing else."""


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
    return {name: value for name, value in values.items() if value is not None}


def of_evaluation(evaluation: Evaluation) -> dict[str, float]:
    values = {
        "held_out/loss": evaluation.loss,
        "held_out/averaged_loss": evaluation.averaged_loss,
    }
    return {name: value for name, value in values.items() if value is not None}


class NewEvaluations:
    """Evaluations that were made since it was last asked.

    The record after an evaluation carries the tag `eval`, and the evaluation is in the file by then: so
    an observer of steps needs no second way to hear of it.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._after = (
            run.first_step - 1
        )  # a process killed after the last one may not have told of it

    def told_by(self, record: StepRecord) -> list[Evaluation]:
        self._after = min(self._after, record.step)  # after a rollback the steps come again
        return self.left() if "eval" in record.tags else []

    def left(self) -> list[Evaluation]:
        """Those after the last record as well: ask at the end."""
        found = [e for e in read_evaluations(self._run) if e.step > self._after]
        self._after = max((e.step for e in found), default=self._after)
        return found
