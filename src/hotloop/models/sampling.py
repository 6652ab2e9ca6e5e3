"""Text from a trained decoder."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hotloop.core.errors import UsageError
from hotloop.models.decoder import Decoder


@torch.inference_mode()
def sample(
    model: Decoder,
    prompt: list[int],
    *,
    num_tokens: int,
    temperature: float = 0.8,
    top_k: int | None = 50,
    stop: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Ids that follow `prompt` (at least one id), one at a time, at most `num_tokens`.

    Temperature 0 takes the likeliest id. Stops at `stop`. Keeps the last `context` ids in sight. Raises
    `UsageError` for a model that computes no numbers.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(seed)
    was_training = model.training
    model.eval()
    ids = torch.tensor([prompt], device=device)
    try:
        for _ in range(num_tokens):
            logits = model(ids[:, -model.shape.context :])[0, -1].float()
            refuse_diverged(logits)
            chosen = _choose(logits, temperature, top_k, generator)
            number = int(chosen)
            if number == stop:
                return
            yield number
            ids = torch.cat([ids, chosen.view(1, 1)], dim=1)
    finally:
        model.train(was_training)


def refuse_diverged(logits: Tensor, *, where: str | None = None) -> None:
    """Raises `UsageError` for logits that are not all finite: weights may be numbers, and only be too large."""
    if not bool(logits.isfinite().all()):
        raise UsageError(
            "this model computes no numbers: its training diverged",
            where=where,
            do="train it again, for example with a lower `optimizer.learning_rate`",
        )


def _choose(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    if temperature == 0:
        return logits.argmax()
    logits = logits / temperature
    if top_k is not None and top_k < logits.numel():
        lowest = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < lowest, float("-inf"))
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)[0]
