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

from hotloop.core.errors import first_line
from hotloop.core.memory_use import memory_refusal
from hotloop.finetune.compiled_attention import layers_of
from hotloop.finetune.encoder import position_table
from hotloop.finetune.encoder_layer import as_written, fuse_layers
from hotloop.finetune.heads import Head, Logits
from hotloop.finetune.labels import OneLabel
from hotloop.finetune.microbatches import BUCKETS
from hotloop.finetune.packed_attention import packed_attention, running
from hotloop.finetune.packing import ATTENTION, Layout, attention, packed
from hotloop.finetune.regression import Number, in_full_precision
from hotloop.finetune.tokens import padded_rows
from hotloop.train.batches import Inputs, to_device

TOLERANCE = 1e-5
"""Largest difference of a packed logit from that of the example by itself, in fp32."""
ONE_LABEL = OneLabel(())


class Classifier(nn.Module):
    """`forward` gives the summed loss of a microbatch, as the training loop wants it."""

    def __init__(
        self, model: nn.Module, *, packed: bool, pad_id: int, head: Head = ONE_LABEL, buckets: int = BUCKETS
    ) -> None:  # fmt: skip
        super().__init__()
        self.model = model
        self.head = head
        self.packed, self.buckets = packed, buckets
        self._pad_id = pad_id
        base: Any = model.base_model
        self._takes = {*inspect.signature(getattr(model, "sequence", model).forward).parameters}
        table = position_table(base)
        self.has_positions = table is not None or "position_ids" in self._takes
        padding = getattr(table, "padding_idx", None)
        self._offset = 0 if padding is None else int(padding) + 1  # RoBERTa's begin behind it
        self._heads = int(getattr(base.config, "num_attention_heads", 1))
        self._layers, self._is_compiled = layers_of(base), False
        self._last = self._layers[-1] if self._layers and head.reads == "first" else None
        fuse_layers(self._layers)
        if isinstance(head, Number):
            in_full_precision(model)
        self.hooks = [base.register_forward_hook(self._to_first_tokens)]
        if table is not None and "position_ids" not in self._takes:
            self.hooks.append(table.register_forward_pre_hook(_at_positions))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Targets of the head, then what `logits` takes."""
        num = self.head.num_targets
        return self.head.loss(in_fp32(self.logits(*inputs[num:])), *inputs[:num])

    def logits(self, *inputs: Tensor) -> Logits:
        """(examples, outputs) or (tokens, outputs), in the order of `arranged`; a pair of both where the head reads both."""
        if not self.packed:
            buckets = zip(*(inputs[n::3] for n in range(3)), strict=True)
            parts = [
                _read(self.model(input_ids=ids, attention_mask=mask), self.head, where)
                for ids, mask, where in buckets
            ]
            found = tuple(torch.cat(own) for own in zip(*parts, strict=True))
            return found if len(found) > 1 else found[0]
        ids, positions, where, starts, there, back, *masks = inputs
        base: Any = self.model.base_model
        at = positions + self._offset
        layout = Layout(starts, there, back, masks, ids.shape[1], self._last, at)
        layout = layout.with_tensors() if self._is_compiled else layout
        named = {"position_ids": at}
        if "head_mask" in self._takes:
            # As in transformers 4, which by itself makes types of one text at most, and takes an id renumbered to that of padding for it and warns.
            named |= {"token_type_ids": torch.zeros_like(ids), "attention_mask": torch.ones_like(ids)}  # fmt: skip
        named = {name: each for name, each in named.items() if name in self._takes}
        with packed_attention(base.config, layout, ATTENTION, attention):
            output = self.model(input_ids=ids, **named)
        found = _read(output, self.head, where)
        return found if len(found) > 1 else found[0]

    def layers_to_compile(self) -> list[nn.Module]:
        """As transformers has them. On a CPU without the last one where it computes first tokens alone, which saves more."""
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        left_out = self._last if on_cpu and hasattr(self._last, "fused_parts") else None
        found = [each for each in self._layers if self.packed and each is not left_out]
        for layer in found:
            as_written(layer)
        self._is_compiled = bool(found)
        return found

    def _to_first_tokens(self, base: Any, arguments: object, output: Any) -> Any:
        """A forward hook of the encoder: its output as that of one token per example."""
        if (layout := running()) is None or self.head.reads == "each":
            return output
        rows = output.last_hidden_state[0]
        if len(rows) == layout.num_tokens:  # else the last layer has left them out
            rows = rows[layout.starts]
        output["last_hidden_state"] = rows.unsqueeze(1)
        if getattr(base, "pooler", None) is not None:
            output["pooler_output"] = base.pooler(output.last_hidden_state)
        return output

    def arranged(self, tokens: Sequence[np.ndarray]) -> tuple[list[int], Inputs]:
        """Examples as `logits` reads them, and the order in which it has them."""
        if not self.packed:
            return padded(tokens, self._pad_id, self.buckets)
        return packed(tokens, self._heads)


def in_fp32(logits: Logits) -> Logits:
    return tuple(each.float() for each in logits) if isinstance(logits, tuple) else logits.float()


def _read(output: Any, head: Head, where: Tensor) -> tuple[Tensor, ...]:
    """What a model gave for rows (B, L); `where` are the tokens that are no padding, as places in all of them: for a mask a GPU is waited for."""
    if head.reads == "first":
        return (output.logits,)
    if head.reads == "each":
        return (output.logits.flatten(0, 1)[where],)
    return output.logits, output.token_logits.flatten(0, 1)[where]


def padded(
    tokens: Sequence[np.ndarray], pad_id: int, buckets: int = BUCKETS
) -> tuple[list[int], Inputs]:
    """Ids and mask (examples, length) and where in them (flat) a token is; the shortest examples first, padded within each three alone."""
    order = sorted(range(len(tokens)), key=lambda index: len(tokens[index]))
    inputs: list[Tensor] = []
    for chosen in np.array_split(np.array(order), min(buckets, len(order))):
        ids, mask = padded_rows([tokens[index] for index in chosen], pad_id)
        inputs += ids, mask, mask.flatten().nonzero()[:, 0]
    return order, tuple(inputs)


@torch.no_grad()
def why_not_packed(
    model: nn.Module, tokens: Sequence[np.ndarray], head: Head = ONE_LABEL
) -> str | None:
    """`None` where the model gives a few examples the same logits packed as each by itself; else why not.

    The longest of all belongs to them: attention may have a window.
    """
    if not hasattr(model, "base_model") or model.base_model is model:
        return "it has no encoder apart from its head"
    was_training, device = model.training, next(model.parameters()).device
    half = any(p.dtype != torch.float32 for p in model.parameters())
    allowed = 2e-2 if half else TOLERANCE  # of a quantized model
    model.eval()
    trial = Classifier(model, packed=True, pad_id=0, head=head)
    try:
        if not trial.has_positions:
            return "it takes no position ids"
        order, inputs = trial.arranged(tokens)
        together = trial.logits(*to_device(inputs, device))
        rows = [torch.from_numpy(tokens[index].astype(np.int64))[None].to(device) for index in order]  # fmt: skip
        alone = [_read(model(input_ids=ids), head, torch.arange(ids.numel(), device=device)) for ids in rows]  # fmt: skip
        for found, parts in zip(together if isinstance(together, tuple) else (together,), zip(*alone, strict=True), strict=True):  # fmt: skip
            wanted = torch.cat(parts).float()
            if found.shape != wanted.shape:
                return f"it gives {len(found)} results for {len(wanted)} examples"
            off = float((found.float() - wanted).abs().max() / max(1.0, float(wanted.abs().max())))
            if not off <= allowed:  # also of what is no number
                return f"logits would differ by {off:.1e}"
    except IndexError:  # of the one token that was left of each text
        return "its head reads other tokens of a text than the first, as those of decoders do"
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        if memory_refusal(error) is not None:
            raise
        return f"it does not take them: {first_line(error)[:120]}"
    finally:
        for hook in trial.hooks:
            hook.remove()
        model.train(was_training)
    return None


def _at_positions(table: object, given: object) -> tuple[Tensor] | None:
    """A forward hook, before it, of the positions of a class that takes none."""
    return None if (layout := running()) is None else (layout.positions,)
