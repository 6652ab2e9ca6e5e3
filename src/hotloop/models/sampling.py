"""Text from a model: the next token of each of several rows, again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from hotloop.core.errors import UsageError
from hotloop.models.decoder import Decoder
from hotloop.models.kv_cache import KeyValueCache


@torch.inference_mode()
def sample(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    seeds: Sequence[int],
    num_tokens: int,
    temperature: float = 0.8,
    top_k: int = 50,
    top_p: float = 1.0,
    stop: int | None = None,
    cache: KeyValueCache | None = None,
) -> Iterator[tuple[int, int | None]]:
    """Ids that follow each of `prompts` (at least one id each), as (row, id); (row, None) ends a row.

    A row has up to `num_tokens`, the same ones whatever other rows there are: each draws with its own
    seed. Temperature 0 takes the likeliest id, `top_k` 0 chooses among all. Ends a row at `stop`. Keeps
    the last `context` ids in sight. Raises `UsageError` for a model that computes no numbers.

    `cache`: a fixed one, with a row for each prompt or more, for a model that is compiled; only what makes one
    token of each row runs compiled: the prompts of every call have another length.
    """
    context = model.shape.context
    weight = model.tokens.weight
    generators = [torch.Generator(weight.device).manual_seed(seed) for seed in seeds]
    ids = [list(prompt) for prompt in prompts]
    rows = list(range(len(ids)))
    if cache is None:
        room = min(context, max(map(len, ids), default=0) + num_tokens)
        cache = KeyValueCache(model.shape, rows=rows, room=room, like=weight)
    ids += [[0]] * (len(cache.rows) - len(ids))
    was_training = model.training
    model.eval()
    try:
        for made in range(num_tokens):
            growing = [row for row in rows if len(ids[row]) <= context]
            full = [row for row in rows if len(ids[row]) > context]
            logits = []
            if growing:
                cache.keep(growing)
                found = _extended(model, cache, [ids[r] for r in cache.rows], whole=made == 0)
                logits.append(found[[cache.rows.index(row) for row in growing]])
            if full:
                # Once the first id is out of sight, all others stand a position lower, and their values in
                # deeper layers no longer know of it: nothing that was kept is right, with rotary positions too.
                seen = torch.tensor([ids[row][-context:] for row in full], device=weight.device)
                logits.append(model.forward(seen, last=True))
            rows = growing + full
            chosen = choose(
                torch.cat(logits)[:, -1].float(),
                [generators[row] for row in rows],
                temperature,
                top_k,
                top_p,
            )
            for row, number in zip(list(rows), chosen, strict=True):
                if number != stop:
                    ids[row].append(number)
                    yield row, number
                if number == stop or made == num_tokens - 1:
                    rows.remove(row)
                    yield row, None
            if not rows:
                return
    finally:
        model.train(was_training)


def _extended(model: Decoder, cache: KeyValueCache, ids: list[list[int]], *, whole: bool) -> Tensor:
    """Logits (B, 1, vocabulary) after the rows of the cache: all of `ids` is new, or only the last of each.

    A shorter row repeats its last token at the same position, which changes nothing, and ends where the others do.
    """
    lasts = [min(len(each), cache.room) - 1 for each in ids]
    width = max(lasts) + 1 if whole else 1
    places = [[min(i, last) for i in range(width)] if whole else [last] for last in lasts]
    tokens = [[each[i] for i in at] for each, at in zip(ids, places, strict=True)]
    device = model.tokens.weight.device
    at = torch.tensor(places, device=device)
    cache.reach(at, max(lasts) + 1)
    step = model.forward if whole else model  # the latter is what may be compiled
    logits: Tensor = step(torch.tensor(tokens, device=device), places=at, cache=cache, last=True)
    return logits


def store_by_inputs(model: nn.Module) -> None:
    """In place, on a CPU: the memory of weights with more outputs than inputs goes input by input; values and shapes stay.

    A product with one row or a few reads it up to twice as fast: of (8192, 384) 22 in place of 9.5 GB/s on an AMD EPYC.
    """
    weights = [each.weight for each in model.modules() if isinstance(each, nn.Linear)]
    if isinstance(model, Decoder):
        weights.append(model.head_weight)
    for weight in weights:
        rows, columns = weight.shape
        if rows > columns and weight.device.type == "cpu" and weight.dtype == torch.float32:
            weight.data = weight.data.t().contiguous().t()


def refuse_diverged(logits: Tensor, *, where: str | None = None) -> None:
    """Raises `UsageError` for logits that are not all finite: weights may be numbers, and only be too large."""
    if not bool(logits.isfinite().all()):
        raise UsageError(
            "this model computes no numbers: its training diverged",
            where=where,
            do="train it again, for example with a lower `optimizer.learning_rate`",
        )


def choose(
    logits: Tensor,
    generators: list[torch.Generator],
    temperature: float,
    top_k: int,
    top_p: float,
) -> list[int]:
    """An id for each row (B, vocabulary) of fp32 logits."""
    refuse_diverged(logits)
    if temperature == 0:
        return logits.argmax(dim=-1).tolist()
    logits = logits / temperature
    most = min(top_k or logits.shape[-1], logits.shape[-1])
    if most < logits.shape[-1]:
        lowest = logits.topk(most).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, float("-inf"))
    weights = logits.softmax(dim=-1)
    if top_p < 1:  # the likeliest that together reach top_p; Holtzman et al. 2020
        ordered = weights.topk(most).values
        beyond = ordered.cumsum(dim=-1) - ordered >= top_p
        beyond[:, 0] = False  # also with a top_p that is 0 in fp32
        lowest = ordered.masked_fill(beyond, 1.0).min(dim=-1, keepdim=True).values
        weights = weights.masked_fill(weights < lowest, 0.0)
    return [
        int(torch.multinomial(row, 1, generator=generator))
        for row, generator in zip(weights, generators, strict=True)
    ]
