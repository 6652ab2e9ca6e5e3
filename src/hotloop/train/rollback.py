"""Training that goes back when a spike asks for it (`stability.spikes: rollback`).

A rollback is a resume inside the process: the newest checkpoint is restored, the data since are passed
over, and training goes on. `steps.jsonl` then tells of the steps that led to the weights, as after any
resume; `rollbacks.jsonl` tells what was undone and why. Where a rollback leads is a function of the
checkpoint and the data alone: a run killed after one and started again does the same once more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from hotloop.checkpoint import store
from hotloop.core.errors import EnvironmentFailed
from hotloop.core.files import ROLLBACKS_FILE, storage_error, write_atomically
from hotloop.core.step import StepRecord, read_steps
from hotloop.train.continuation import restore
from hotloop.train.evaluate import Evaluation
from hotloop.train.group import StopRequest
from hotloop.train.loop import save, train
from hotloop.train.run import Run
from hotloop.train.stability import RollBack, Stability


def train_to_the_end(
    run: Run,
    *,
    stop_after: int | None = None,
    observers: tuple[Callable[[StepRecord], None], ...] = (),
    notes: tuple[str, ...] = (),
    warn: Callable[[str], None] = lambda message: None,
) -> tuple[float | None, Evaluation | None]:
    """`train`, and again from the newest checkpoint for each spike that it goes back from."""
    if run.group.ranks.is_first:
        keep_rollbacks(run.directory, run.stability.num_rollbacks)
    if run.config.stability.spikes == "rollback" and not run.first_step and stop_after is None:
        save(run, 0)  # something to go back to before the first save is due
    with StopRequest() as stop:
        while True:
            try:
                return train(
                    run, stop=stop, stop_after=stop_after, observers=observers, notes=notes
                )
            except RollBack as found:
                warn(roll_back(run, found))


def roll_back(run: Run, found: RollBack) -> str:
    """Restore the newest checkpoint and pass over the data up to the spike. Returns what was done, in words."""
    before, run.stability = run.stability, Stability(run.config, run.device)
    newest, _ = run.group.decided(lambda: store.latest(run.checkpoints))
    assert newest is not None, "one was saved before the first step"
    restore(run, newest)
    run.stability.went_back(from_step=found.step, to_step=run.first_step, before=before)
    if run.group.ranks.is_first:  # all ranks see the same spike and go back alike
        record_rollback(run, found)
    return (
        f"step {found.step} is a spike ({found.spike}): back to step {run.first_step}, and over the "
        f"data since; rollback {run.stability.num_rollbacks} of {run.config.stability.max_rollbacks}"
    )


def record_rollback(run: Run, found: RollBack) -> None:
    """Add a line to `rollbacks.jsonl`. Raises `EnvironmentFailed` on a full disk."""
    undone = [r for r in read_steps(run.steps_file) if r.step >= run.first_step]
    entry = {
        "step": found.step,
        "back_to": run.first_step,
        "why": str(found.spike),
        "lost_steps": len(undone),
        "lost_s": round(math.fsum(record.wall_s for record in undone), 3),
        "steps_passed_over": run.stability.steps_passed_over,
    }
    path = run.directory / ROLLBACKS_FILE
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        raise storage_error(error, path, "record a rollback") from error


def keep_rollbacks(directory: Path, count: int) -> None:
    """Drop all but the first `count`: a resumed run goes back again where it did after its checkpoint."""
    path = directory / ROLLBACKS_FILE
    if not path.exists():
        return
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise EnvironmentFailed(
            f"cannot read the rollbacks: {error.strerror}", where=str(path)
        ) from error
    write_atomically(path, b"".join(lines[:count]))
