"""What a training is about, as the loop sees it; everything else in `loop.py` is the same for all.

`text_work.py` is the decoder on text; `finetune` has the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hotloop.train.batches import Inputs, StepData

if TYPE_CHECKING:
    from hotloop.train.interruption import StopRequest
    from hotloop.train.run import Run


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What one pass over the held-out data found."""

    loss: float
    """Mean over targets, in nats."""
    num_targets: int
    metrics: dict[str, Any] | None = None
    """Other measures of the task, JSON-ready; `None` where it has none."""


class EvaluationCut(Exception):
    """A stop was asked for meanwhile: the run that continues makes the evaluation, so that its curve is whole."""


class Work(Protocol):
    """The data of a training, as arguments of its model, whose forward returns the summed loss of a microbatch."""

    @property
    def loader(self) -> Mapping[str, Any]:
        """How batches are made, for the census."""

    @property
    def prefetch(self) -> int | None:
        """Steps read ahead; `None` as suits the device."""

    @property
    def has_held_out(self) -> bool: ...

    def read(self, step: int, *, own: Sequence[int], pinned: bool) -> StepData:
        """The microbatches `own` of a step. Pure; may run in a thread."""

    def sample(self) -> Inputs:
        """A little of the data, for a forward that is watched."""

    def evaluate(self, run: Run, stop: StopRequest) -> HeldOut | None:
        """With the model's present weights; `None` where nothing is held out. Raises `EvaluationCut`, on all ranks."""
