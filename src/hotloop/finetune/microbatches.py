"""How the examples of a step are divided into microbatches: by their number, or by their tokens.

The examples of a step and its gradient, that of its mean loss, are the same either way. Of packed examples a microbatch has
the sum of their lengths; of padded ones, those of similar length together, number times longest of each bucket.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hotloop.core.finetune_config import FinetuneTrain, Layout
from hotloop.report.numbers import counted

BUCKETS = 4
"""Lengths that a microbatch of a model that cannot be packed is padded to."""
PACKED = 0
"""In place of a number of buckets."""
EVEN, SHORT = 0.05, 16
"""Less than that share of a microbatch is padding where it is padded to its longest; tokens of an example, in the mean."""


class Laid(Protocol):
    """A model, by how it reads examples."""

    packed: bool
    buckets: int


@dataclass
class AsAsked:
    """What a model is to be, or would be by its config."""

    packed: bool
    buckets: int


def laid_out(
    asked: Layout,
    steps: Sequence[np.ndarray],
    train: FinetuneTrain,
    warn: Callable[[str], None],
    kind: str,
    why_not: Callable[[], str | None],
    *,
    drops: bool = False,
) -> AsAsked:
    """As `model.packed` asks for, or where that is `auto` as the lengths of the examples suggest, and says why.

    steps: those lengths. kind: the class of the model. why_not: reason that it cannot be packed, if any. drops: it is a decoder
    whose attention has dropout, which packed is a product for each example by itself; of few tokens that takes longer than padding.
    """
    if asked not in (True, "auto"):
        return AsAsked(False, BUCKETS if asked else 1)
    is_even, reason = False, None
    if asked == "auto":
        parts = [own[part] for own in steps for part in by_number(len(own), train.microbatch)]
        real, padded = (sum(computed(part, buckets) for part in parts) for buckets in (PACKED, 1))
        mean, is_even = real / sum(map(len, parts)), 1 - real / padded < EVEN
        if is_even and drops and mean < SHORT:
            reason = f"{mean:.0f} tokens an example, of which padding would be {1 - real / padded:.0%} of a microbatch: so few take longer packed where attention has dropout"
    if (reason := reason or why_not()) is None:
        return AsAsked(True, BUCKETS)
    how = "those of a microbatch" if is_even else "examples of similar length"
    warn(f"{kind} is not packed: {reason}; {how} are padded together")
    return AsAsked(False, 1 if is_even else BUCKETS)


def divided(lengths: Sequence[int], train: FinetuneTrain, model: Laid) -> list[list[int]]:
    """The microbatches of a step whose examples have these lengths, as places among them."""
    budget = train.microbatch_tokens
    if budget is None:
        return by_number(len(lengths), train.microbatch)
    if model.packed:
        return level(np.asarray(lengths), budget)
    return alike(np.asarray(lengths), budget, model.buckets)


def divided_sorted(lengths: Sequence[int], train: FinetuneTrain, model: Laid) -> list[list[int]]:
    """The same of an evaluation, of all its examples those of similar length together."""
    if (budget := train.microbatch_tokens) is not None:
        return alike(np.asarray(lengths), budget, PACKED if model.packed else model.buckets)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [[order[at] for at in part] for part in by_number(len(order), train.microbatch)]


def by_number(num: int, size: int) -> list[list[int]]:
    return [list(range(begin, min(begin + size, num))) for begin in range(0, num, size)]


def computed(lengths: np.ndarray, buckets: int) -> int:
    """Tokens that a microbatch is computed with, padding among them."""
    if buckets == PACKED:
        return int(lengths.sum())
    parts = np.array_split(np.sort(lengths), min(buckets, len(lengths)))
    return sum(len(part) * int(part[-1]) for part in parts)


def alike(lengths: np.ndarray, budget: int, buckets: int) -> list[list[int]]:
    """Up to `budget` tokens, or one example, in each; neighbours in length together, the longest first."""
    order = np.argsort(-lengths, kind="stable")
    parts, begin = [], 0
    for end in range(2, len(order) + 1):
        if end - begin > 1 and computed(lengths[order[begin:end]], buckets) > budget:
            parts.append(order[begin : end - 1].tolist())
            begin = end - 1
    return [*parts, order[begin:].tolist()]


def level(lengths: np.ndarray, budget: int) -> list[list[int]]:
    """As few parts of up to `budget` tokens, or one example, as are found, with about as many tokens in each.

    Long and short ones together: so the widest part, and with it the memory, is no larger than it has to be.
    """
    found = alike(lengths, budget, PACKED)
    fewest, most = -(-int(np.minimum(lengths, budget).sum()) // budget), len(found)
    while fewest <= most:
        middle = (fewest + most) // 2
        parts = _dealt(lengths, middle)
        if all(len(part) == 1 or lengths[part].sum() <= budget for part in parts):
            found, most = parts, middle - 1
        else:
            fewest = middle + 1
    return found


def _dealt(lengths: np.ndarray, num: int) -> list[list[int]]:
    """Each example, the longest first, into the part that has the fewest tokens."""
    parts: list[list[int]] = [[] for _ in range(num)]
    loads = [(0, number) for number in range(num)]
    for index in np.argsort(-lengths, kind="stable").tolist():
        load, number = loads[0]
        parts[number].append(index)
        heapq.heapreplace(loads, (load + int(lengths[index]), number))
    return parts


def in_words(
    steps: Sequence[np.ndarray], when: str, train: FinetuneTrain, model: Laid
) -> list[str]:
    """What padding costs, and what a budget makes of steps; steps: the lengths of the examples of each. when: which they are."""
    budget, buckets = train.microbatch_tokens, model.buckets

    def slots(divide: Callable[[np.ndarray], list[list[int]]], buckets: int) -> list[list[int]]:
        return [[computed(own[part], buckets) for part in divide(own)] for own in steps]

    def padded(buckets: int) -> list[list[int]]:
        if budget is not None:
            return slots(lambda own: alike(own, budget, buckets), buckets)
        return slots(lambda own: by_number(len(own), train.microbatch), buckets)

    real, longest, similar = (
        sum(map(sum, padded(each))) / len(steps) for each in (PACKED, 1, BUCKETS)
    )
    told = [
        f"packed {real:,.0f}",
        f"padded to the longest of each microbatch {longest:,.0f} ({longest / real:.2f} times)",
        f"with similar lengths together {similar:,.0f} ({similar / real:.2f} times)",
    ]
    told[0 if model.packed else 2 if buckets > 1 else 1] += ", as here"
    lines = [f"tokens a step in the mean of {when}: {'; '.join(told)}"]
    if budget is not None:
        found = slots(lambda own: divided(own.tolist(), train, model), PACKED if model.packed else buckets)  # fmt: skip
        least, most = min(map(len, found)), max(map(len, found))
        counts = f"{least} to " * (least < most) + counted(most, "microbatch", "microbatches")
        longer = sum(int((own > budget).sum()) for own in steps)
        more = f"; longer than that, and so one by itself: {counted(longer, 'example')}" * (longer > 0)  # fmt: skip
        lines.append(f"`train.microbatch_tokens` {budget:,}: {counts} a step in {when}, the widest of {max(map(max, found)):,} tokens{more}")  # fmt: skip
    return lines
