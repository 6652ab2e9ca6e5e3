"""A decoder of transformers that learns marked tokens, without padding between examples and without logits of others.

Packed: the examples of a microbatch lie one after the other in one row, with positions that begin again and attention
that stays inside each (`packed_attention.py`). The output layer, most of a small decoder's work, computes only the
tokens whose next one is learned. Whether a model can do so is checked, not assumed; else examples of similar length
are padded together.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotloop.core.causal_config import CausalConfig
from hotloop.core.errors import first_line
from hotloop.core.memory_use import memory_refusal
from hotloop.finetune.compiled_attention import layers_of
from hotloop.finetune.microbatches import BUCKETS, divided, divided_sorted
from hotloop.finetune.packed_attention import Row, packed_attention
from hotloop.finetune.sequences import Example
from hotloop.finetune.tokens import padded_rows
from hotloop.finetune.work import (
    InMemory,
    chosen_in,
    held_out_parts,
    in_microbatches,
    longest_first,
    spread,
)
from hotloop.optimizations.precision.autocast import autocast
from hotloop.train.batches import Inputs, StepData, to_device
from hotloop.train.interruption import StopRequest
from hotloop.train.run import Run
from hotloop.train.work import HeldOut

TOLERANCE = 1e-5
"""Largest difference of a packed logit from that of the example by itself, in fp32, relative to the largest where that is above 1."""


class CausalLearner(nn.Module):
    """`forward` gives the summed loss of a microbatch, as the training loop wants it."""

    def __init__(
        self, model: nn.Module, *, packed: bool, longest: int, buckets: int = BUCKETS
    ) -> None:
        super().__init__()
        self.model = model
        self.packed, self.buckets = packed, buckets
        self._longest = longest
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(self, targets: Tensor, *inputs: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(*inputs).float(), targets, reduction="sum")

    def logits(self, *inputs: Tensor) -> Tensor:
        """(targets, vocabulary), in the order of `arranged`."""
        if not self.packed:
            parts = []
            for ids, mask, where in zip(*(inputs[n::3] for n in range(3)), strict=True):
                found = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
                parts.append(found.flatten(0, 1)[where])
            return torch.cat(parts)
        ids, positions, lengths, where = inputs
        selects = {"logits_to_keep": where} if self._selects else {}
        with packed_attention(self.model.config, Row(lengths, self._longest)):
            found = self.model(input_ids=ids, position_ids=positions, use_cache=False, **selects).logits  # fmt: skip
        picked: Tensor = found[0] if self._selects else found[0, where]
        return picked

    def layers_to_compile(self) -> list[nn.Module]:
        base: Any = self.model.base_model
        return layers_of(base) if self.packed else []

    def arranged(self, examples: Sequence[Example]) -> Inputs:
        """Arguments of `forward`: the targets, then what `logits` takes."""
        return packed_row(examples) if self.packed else padded(examples, self.buckets)


def packed_row(examples: Sequence[Example]) -> Inputs:
    """targets (N); ids and positions (1, T), the length of each example, where in the row a target is predicted (N).

    The last token of an example is predicted, never read.
    """
    lengths = np.array([each.num_read for each in examples], dtype=np.int64)
    ids = np.concatenate([each.ids[:-1] for each in examples]).astype(np.int64)
    nexts = np.concatenate([each.ids[1:] for each in examples]).astype(np.int64)
    where = np.flatnonzero(np.concatenate([each.learned[1:] for each in examples]))
    positions = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    arrays = (nexts[where], ids[None], positions[None], lengths, where)
    return tuple(torch.from_numpy(each) for each in arrays)


def padded(examples: Sequence[Example], buckets: int = BUCKETS) -> Inputs:
    """targets (N); then of each bucket ids and mask (examples, length) and where in it (flat) a target is predicted.

    The shortest examples first, padded within their bucket alone. What is read of padding has no effect: it stands behind.
    """
    order = sorted(examples, key=lambda each: each.num_read)
    targets: list[np.ndarray] = []
    inputs: list[Tensor] = []
    for chosen in np.array_split(np.arange(len(order)), min(buckets, len(order))):
        bucket = [order[index] for index in chosen]
        ids, mask = padded_rows([each.ids[:-1] for each in bucket], 0)
        learned = np.zeros(ids.shape, dtype=bool)
        for row, each in enumerate(bucket):
            learned[row, : each.num_read] = each.learned[1:]
            targets.append(each.ids[1:][each.learned[1:]])
        inputs += ids, mask, torch.from_numpy(np.flatnonzero(learned))
    return torch.from_numpy(np.concatenate(targets).astype(np.int64)), *inputs


@torch.no_grad()
def why_not_packed(model: nn.Module, examples: Sequence[Example], longest: int) -> str | None:
    """`None` where the model gives a few examples the same logits packed as each by itself; else why not."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it takes no position ids"
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    trial = CausalLearner(model, packed=True, longest=longest)
    whole = [Example(each.ids, np.arange(len(each.ids)) > 0) for each in examples]
    try:
        found = trial.logits(*to_device(packed_row(whole)[1:], device)).float()
        alone = [torch.from_numpy(each.ids[:-1].astype(np.int64))[None].to(device) for each in whole]  # fmt: skip
        wanted = torch.cat([model(input_ids=ids, use_cache=False).logits[0] for ids in alone]).float()  # fmt: skip
        if found.shape != wanted.shape:
            return f"it gives {len(found)} results for {len(wanted)} tokens"
        difference = float((found - wanted).abs().max() / max(1.0, float(wanted.abs().max())))
        half = any(p.dtype != torch.float32 for p in model.parameters())
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError) as error:  # fmt: skip
        if memory_refusal(error) is not None:
            raise
        return f"it does not take them: {first_line(error)[:120]}"
    finally:
        model.train(was_training)
    allowed = 2e-2 if half else TOLERANCE  # of a quantized model
    return None if difference <= allowed else f"logits would differ by {difference:.1e}"


@dataclass(frozen=True, slots=True)
class CausalWork(InMemory):
    """Of one process: a step takes the same examples as with padding, and its loss is the mean over their targets."""

    config: CausalConfig
    model: CausalLearner
    train: list[Example]
    held_out: list[Example]

    @property
    def has_held_out(self) -> bool:
        return bool(self.held_out)

    def read(self, step: int, *, own: Sequence[int], pinned: bool) -> StepData:
        train = self.train
        step = longest_first(
            step, self.config, len(train), lambda at: train[at].num_read, self.model
        )
        numbers = chosen_in(step, self.config, self.config.data.seed, len(train))
        chosen = [train[index] for index in numbers]
        lengths = [each.num_read for each in chosen]
        parts = divided(lengths, self.config.train, self.model)
        microbatches = in_microbatches(numbers, parts, self._arranged, pinned)
        num_targets = sum(each.num_targets for each in chosen)
        return StepData(microbatches, num_targets, sum(lengths), len(chosen))

    def _arranged(self, numbers: list[int]) -> Inputs:
        return self.model.arranged([self.train[index] for index in numbers])

    def sample(self) -> Inputs:
        return self.model.arranged(self.train[:4])

    @torch.no_grad()
    def evaluate(self, run: Run, stop: StopRequest) -> HeldOut | None:
        """Over all held-out examples, those of a length together."""
        few = spread(len(self.held_out), self.config.eval.windows)
        chosen = [self.held_out[at] for at in few]
        if not chosen:
            return None
        parts = divided_sorted([each.num_read for each in chosen], self.config.train, self.model)
        total = torch.zeros((), device=run.device)
        for part in held_out_parts(run, self.model, stop, chosen, parts):
            inputs = to_device(self.model.arranged(part), run.device)
            with autocast(run.device.type, self.config.train.precision):
                total += self.model(*inputs)
        num_targets = sum(each.num_targets for each in chosen)
        loss = total.item() / num_targets
        return HeldOut(loss, num_targets, {"perplexity": math.exp(min(loss, 700.0))})
