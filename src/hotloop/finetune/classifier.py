"""A text classifier of transformers that reads examples without padding between them.

Packed: all examples of a microbatch lie one after the other in one row, with positions that begin again and
attention that stays inside each. The encoder then computes every token once and no padding. What comes out is
gathered to one row per example that holds its first token alone, which is all that the heads of BERT and its
relatives read, and the class's own head goes on from there. Whether a class can do so is checked, not assumed.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.finetune.heads import Head, Logits
from hotloop.finetune.labels import OneLabel
from hotloop.train.batches import Inputs

TOLERANCE = 1e-5
"""Largest difference of a packed logit from that of the example by itself, in fp32."""
BUCKETS = 4
"""Lengths that a microbatch of a model that cannot be packed is padded to."""


ONE_LABEL = OneLabel(())


class Classifier(nn.Module):
    """`forward` gives the summed loss of a microbatch, as the training loop wants it."""

    def __init__(
        self, model: nn.Module, *, packed: bool, pad_id: int, head: Head = ONE_LABEL
    ) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.packed = packed
        self._pad_id = pad_id
        self._starts: Tensor | None = None
        base: Any = model.base_model
        self._offset = _first_position(base)
        self.hook = base.register_forward_hook(self._to_first_tokens)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Targets of the head, then what `logits` takes."""
        num = self.head.num_targets
        return self.head.loss(in_fp32(self.logits(*inputs[num:])), *inputs[:num])

    def logits(self, *inputs: Tensor) -> Logits:
        """(examples, outputs) or (tokens, outputs), in the order of `arranged`; a pair of both where the head reads both."""
        if not self.packed:
            pairs = zip(inputs[::2], inputs[1::2], strict=True)
            parts = [
                _read(self.model(input_ids=ids, attention_mask=mask), self.head, mask.bool())
                for ids, mask in pairs
            ]
            found = tuple(torch.cat(own) for own in zip(*parts, strict=True))
            return found if len(found) > 1 else found[0]
        ids, positions, example_of, starts = inputs
        mask = (example_of[:, None] == example_of[None, :])[None, None]
        self._starts = None if self.head.reads == "each" else starts
        try:
            output = self.model(
                input_ids=ids, position_ids=positions + self._offset, attention_mask=mask
            )
        finally:
            self._starts = None
        found = _read(output, self.head, torch.ones_like(ids, dtype=torch.bool))
        return found if len(found) > 1 else found[0]

    def _to_first_tokens(self, base: Any, arguments: object, output: Any) -> Any:
        """A forward hook of the encoder: its output as that of one token per example."""
        if self._starts is None:
            return output
        output["last_hidden_state"] = output.last_hidden_state[0, self._starts].unsqueeze(1)
        if getattr(base, "pooler", None) is not None:
            output["pooler_output"] = base.pooler(output.last_hidden_state)
        return output

    def arranged(self, tokens: Sequence[np.ndarray]) -> tuple[list[int], Inputs]:
        """Examples as `logits` reads them, and the order in which it has them."""
        if not self.packed:
            return padded(tokens, self._pad_id)
        return list(range(len(tokens))), packed_row(tokens)


def in_fp32(logits: Logits) -> Logits:
    return tuple(each.float() for each in logits) if isinstance(logits, tuple) else logits.float()


def _read(output: Any, head: Head, mask: Tensor) -> tuple[Tensor, ...]:
    """What a model gave for rows (B, L); `mask` marks the tokens that are no padding."""
    if head.reads == "first":
        return (output.logits,)
    if head.reads == "each":
        return (output.logits[mask],)
    return output.logits, output.token_logits[mask]


def packed_row(tokens: Sequence[np.ndarray]) -> Inputs:
    """ids and positions (1, T), the example of each token (T), the first token of each example (examples)."""
    lengths = np.array([len(ids) for ids in tokens], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    ids = np.concatenate(tokens).astype(np.int64)
    example_of = np.repeat(np.arange(len(tokens)), lengths)
    positions = np.arange(len(ids)) - starts[example_of]
    as_row = (torch.from_numpy(ids)[None], torch.from_numpy(positions)[None])
    return *as_row, torch.from_numpy(example_of), torch.from_numpy(starts)


def padded(tokens: Sequence[np.ndarray], pad_id: int) -> tuple[list[int], Inputs]:
    """Pairs of ids and mask (examples, length), the shortest examples first, padded within each pair alone."""
    order = sorted(range(len(tokens)), key=lambda index: len(tokens[index]))
    inputs: list[Tensor] = []
    for chosen in np.array_split(np.array(order), min(BUCKETS, len(order))):
        width = max(len(tokens[index]) for index in chosen)
        ids = torch.full((len(chosen), width), pad_id, dtype=torch.int64)
        mask = torch.zeros((len(chosen), width), dtype=torch.int64)
        for row, index in enumerate(chosen):
            own = torch.from_numpy(tokens[index].astype(np.int64))
            ids[row, : len(own)], mask[row, : len(own)] = own, 1
        inputs += [ids, mask]
    return order, tuple(inputs)


@torch.no_grad()
def why_not_packed(
    model: nn.Module, tokens: Sequence[np.ndarray], head: Head = ONE_LABEL
) -> str | None:
    """`None` where the model gives a few examples the same logits packed as each by itself; else why not."""
    if (
        "position_ids"
        not in inspect.signature(getattr(model, "sequence", model).forward).parameters
    ):
        return "it takes no position ids"
    if not hasattr(model, "base_model") or model.base_model is model:
        return "it has no encoder apart from its head"
    was_training = model.training
    model.eval()
    trial = Classifier(model, packed=True, pad_id=0, head=head)
    difference = 0.0
    try:
        packed = trial.logits(*packed_row(tokens))
        rows = [torch.from_numpy(ids.astype(np.int64))[None] for ids in tokens]
        alone = [_read(model(input_ids=ids), head, torch.ones_like(ids).bool()) for ids in rows]
        for found, parts in zip(packed if isinstance(packed, tuple) else (packed,), zip(*alone, strict=True), strict=True):  # fmt: skip
            wanted = torch.cat(parts).float()
            if found.shape != wanted.shape:
                return f"it gives {len(found)} results for {len(wanted)} examples"
            off = float((found.float() - wanted).abs().max() / max(1.0, float(wanted.abs().max())))
            difference = max(difference, off)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        return f"it does not take them: {str(error).splitlines()[0][:120]}"
    finally:
        trial.hook.remove()
        model.train(was_training)
    return None if difference <= TOLERANCE else f"logits would differ by {difference:.1e}"


def _first_position(base: Any) -> int:
    """The position id of a first token: RoBERTa's begin behind that of padding."""
    table = getattr(getattr(base, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1
