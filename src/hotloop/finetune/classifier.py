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
import torch.nn.functional as F
from torch import Tensor, nn

from hotloop.train.batches import Inputs

TOLERANCE = 1e-5
"""Largest difference of a packed logit from that of the example by itself, in fp32."""
BUCKETS = 4
"""Lengths that a microbatch of a model that cannot be packed is padded to."""


class Classifier(nn.Module):
    """`forward` gives the summed loss of a microbatch, as the training loop wants it."""

    def __init__(self, model: nn.Module, *, packed: bool, pad_id: int) -> None:
        super().__init__()
        self.model = model
        self.packed = packed
        self._pad_id = pad_id
        self._starts: Tensor | None = None
        base: Any = model.base_model
        self._offset = _first_position(base)
        self.hook = base.register_forward_hook(self._to_first_tokens)

    def forward(self, labels: Tensor, *inputs: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(*inputs).float(), labels, reduction="sum")

    def logits(self, *inputs: Tensor) -> Tensor:
        """(examples, classes), in the order of `arranged`."""
        if not self.packed:
            pairs = zip(inputs[::2], inputs[1::2], strict=True)
            parts = [self.model(input_ids=ids, attention_mask=mask).logits for ids, mask in pairs]
            return torch.cat(parts)
        ids, positions, example_of, starts = inputs
        mask = (example_of[:, None] == example_of[None, :])[None, None]
        self._starts = starts
        try:
            found: Tensor = self.model(
                input_ids=ids, position_ids=positions + self._offset, attention_mask=mask
            ).logits
        finally:
            self._starts = None
        return found

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
def why_not_packed(model: nn.Module, tokens: Sequence[np.ndarray]) -> str | None:
    """`None` where the model gives a few examples the same logits packed as each by itself; else why not."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it takes no position ids"
    if not hasattr(model, "base_model") or model.base_model is model:
        return "it has no encoder apart from its head"
    was_training = model.training
    model.eval()
    trial = Classifier(model, packed=True, pad_id=0)
    try:
        found = trial.logits(*packed_row(tokens)).float()
        alone = [torch.from_numpy(ids.astype(np.int64))[None] for ids in tokens]
        wanted = torch.cat([model(input_ids=ids).logits for ids in alone]).float()
        if found.shape != wanted.shape:
            return f"it gives {len(found)} results for {len(wanted)} examples"
        difference = float((found - wanted).abs().max() / max(1.0, float(wanted.abs().max())))
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
