"""Language modelling on text: what of it the loop asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hotloop.core.child import LONGEST_FIRST
from hotloop.core.config import RunConfig
from hotloop.data.loader import Batches
from hotloop.data.packing import BucketLoader
from hotloop.data.streaming import StreamedLoader
from hotloop.train.batches import Inputs, StepData, as_tensors, read_step, to_device
from hotloop.train.work import EvaluationCut, HeldOut

if TYPE_CHECKING:
    from hotloop.train.interruption import StopRequest
    from hotloop.train.run import Run


@dataclass(frozen=True, slots=True)
class TextWork:
    """Of a `RunConfig`."""

    config: RunConfig
    batches: Batches
    held_out: Batches | None
    """`None` when the validation shards are too small for one sequence."""

    @property
    def loader(self) -> Mapping[str, Any]:
        data = self.config.data
        return {
            "kind": "memory map",
            "num_workers": 0,
            "order": data.order,
            "layout": data.layout,
        }

    @property
    def prefetch(self) -> int | None:
        return self.config.data.prefetch

    @property
    def has_held_out(self) -> bool:
        return self.held_out is not None

    def read(self, step: int, *, own: Sequence[int], pinned: bool) -> StepData:
        if not step and LONGEST_FIRST in os.environ and isinstance(self.batches, BucketLoader):
            step = self.batches.widest() // self.config.train.grad_accum_steps
        position = step * self.config.sequences_per_step
        return read_step(self.config, self.batches, position, own=own, pinned=pinned)

    def sample(self) -> Inputs:
        """One sequence, or bucket."""
        return as_tensors(self.batches.batch(0, self.batches.unit), pinned=False)

    def evaluate(self, run: Run, stop: StopRequest) -> HeldOut | None:
        """Over the first `eval.windows` sequences, the same ones every time."""
        if self.held_out is None:
            return None
        if isinstance(self.held_out, StreamedLoader):
            self.held_out.wait(self.config.eval.windows)
        if not self.held_out.num_sequences:
            return None
        return HeldOut(*held_out_loss(run, self.held_out, stop))


@torch.no_grad()
def held_out_loss(run: Run, held_out: Batches, stop: StopRequest) -> tuple[float, int]:
    """The mean loss with the model's present weights, and over how many targets."""
    sequences = min(run.config.eval.windows, held_out.num_sequences)
    run.model.eval()
    total = torch.zeros((), device=run.device)
    targets = 0
    ranks, size = run.group.ranks, run.config.train.microbatch
    for position in range(ranks.rank * size, sequences, ranks.num_ranks * size):
        run.watchdog.passed()
        if stop.asked:
            break
        batch = held_out.batch(position, min(size, sequences - position))
        inputs = to_device(as_tensors(batch, pinned=False), run.device)
        # A compiled module would compile once more without gradients, which costs longer than the
        # eager evaluations of a short run together.
        total += run.uncompiled(*inputs)
        targets += batch.num_targets
    run.model.train()
    if run.group.summed(torch.tensor(int(stop.asked))) > 0:
        raise EvaluationCut
    targets = int(run.group.summed(torch.tensor(targets)))
    return run.group.summed(total).item() / targets, targets
