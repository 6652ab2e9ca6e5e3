"""What is done when the numbers go wrong: seen late, a step behind, so that looking costs nothing."""

from __future__ import annotations

import math

from hotloop.core.errors import ExitCode, HotloopError
from hotloop.train.run import Run


class TrainingDiverged(HotloopError):
    """The loss, the gradients or the weights are no longer numbers."""

    exit_code = ExitCode.FOUND


def checked(
    run: Run,
    newest: dict[str, float] | None,
    step: int,
    before: dict[str, float] | None,
    measuring: bool,
) -> dict[str, float] | None:
    """The newest known values. Raises `TrainingDiverged` when they are no numbers.

    A process that is measured goes on: what it recorded is for the judge to see. A gradient that
    overflows under the scaler of fp16 is no divergence: the scaler skips that update.
    """
    if newest is None:
        return before
    broken = [
        name
        for name, value in newest.items()
        if not math.isfinite(value) and (name == "loss" or run.scaler is None)
    ]
    if broken and not measuring:
        raise TrainingDiverged(
            f"the {broken[0].replace('grad_norm', 'gradient norm')} became {newest[broken[0]]} "
            f"at about step {step}",
            do="lower `optimizer.learning_rate`, or train in fp32; what was saved before is kept",
        )
    return newest
