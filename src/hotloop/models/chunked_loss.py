"""The cross-entropy over a vocabulary in chunks of tokens: the logits of all tokens never exist at once.

The gradients are computed with the loss, chunk by chunk, in the memory of its logits: nothing is computed
twice, and the backward only scales them. So Liger's fused linear cross-entropy does it (Hsu et al. 2024,
arXiv 2410.10989). One operator, which the compiler leaves as it is: unrolled in its graph, the chunks
would be its to reorder, and could be alive together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

STRIP_BYTES = 8 << 20
"""Logits beside which a CPU keeps their logarithms, in fp32. Of smaller ones threads would meet more often."""


def chunked_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, most: int, vocabulary: int, ignored: int
) -> Tensor:
    """The sum over `targets` (N,) that are not `ignored` of the cross-entropy in nats, in fp32.

    The logits are `F.linear(hidden, weight)`, in autocast's type where it is on, of `most` tokens at a time;
    those of rows of `weight` (R, width) from `vocabulary` on are left out.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        hidden = hidden.to(torch.get_autocast_dtype(kind))
    if torch.is_grad_enabled():
        loss: Tensor = _with_gradients(hidden, weight, targets, most, vocabulary, ignored)[0]
        return loss
    weight = weight.to(hidden.dtype)
    losses = [
        F.cross_entropy(strip.float(), ids, ignore_index=ignored, reduction="sum")
        for part, part_ids in _split(most, hidden, targets)
        for strip, ids in _strips(F.linear(part, weight)[:, :vocabulary], part_ids)
    ]
    return torch.stack(losses).sum()


def _split(most: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Pieces of up to `most` rows, as equal as can be."""
    rows = len(tensors[0])
    size = -(-rows // -(-rows // most))
    return zip(*(each.split(size) for each in tensors), strict=True)  # type: ignore[no-untyped-call]


def _strips(logits: Tensor, *others: Tensor, kind: str = "") -> Iterator[tuple[Tensor, ...]]:
    """On a CPU few rows, for the memory beside them; else all, since each strip would be launches of its own."""
    fit = max(1, STRIP_BYTES // (4 * logits.shape[1]))
    on_cpu = (kind or logits.device.type) == "cpu"
    return _split(fit if on_cpu else len(logits), logits, *others)


def loss_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    most: int,
    vocabulary: int,
    ignored: int,
    *,
    kind: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, its gradient by `hidden`, in that one's type, and by `weight`, in fp32.

    kind: whose memory it is to take, `cuda` or `cpu`; else that of the tensors' own device.
    """
    loss = hidden.new_zeros((), dtype=torch.float32)
    hidden_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight)
    same_type = weight.to(hidden.dtype)
    for part, part_grad, part_ids in _split(most, hidden, hidden_grad, targets.unsqueeze(1)):
        counts = part_ids != ignored
        logits = F.linear(part, same_type)
        logits[:, vocabulary:] = 0
        for strip, ids, count in _strips(logits[:, :vocabulary], part_ids, counts, kind=kind):
            logs = F.log_softmax(strip, dim=-1, dtype=torch.float32)
            at = ids.where(count, 0)
            chosen = logs.gather(1, at)
            loss -= chosen.where(count, 0).sum()
            # From here on the logits are the loss's gradient by them: probabilities, less 1 at the target.
            strip.copy_(logs.exp_().scatter_(1, at, chosen.expm1()))
        torch.mm(logits, same_type, out=part_grad)
        # What does not count is left out here, and not of the logits, which are much wider.
        part_grad.mul_(counts)
        part = part * counts
        if part.dtype == weight_grad.dtype:
            weight_grad.addmm_(logits.t(), part)
        else:
            weight_grad += logits.t() @ part
        del logits  # before the next ones
    return loss, hidden_grad, weight_grad


@torch.library.custom_op("hotloop::chunked_loss", mutates_args=())
def _with_gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, most: int, vocabulary: int, ignored: int
) -> tuple[Tensor, Tensor, Tensor]:
    return loss_and_gradients(hidden, weight, targets, most, vocabulary, ignored)


@_with_gradients.register_fake
def _shapes(
    hidden: Tensor, weight: Tensor, targets: Tensor, most: int, vocabulary: int, ignored: int
) -> tuple[Tensor, Tensor, Tensor]:
    loss = hidden.new_empty((), dtype=torch.float32)
    return loss, torch.empty_like(hidden), torch.empty_like(weight)


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # else there would be zeros as large as the gradients
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, scale: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    hidden_grad, weight_grad = ctx.saved_tensors
    return hidden_grad * scale, weight_grad * scale, None, None, None, None


_with_gradients.register_autograd(_backward, setup_context=_keep_gradients)
