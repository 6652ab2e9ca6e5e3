"""The order of sequences: a pure function of (seed, epoch, position), in constant memory; of one corpus, and of several.

A Feistel network over pairs (left, right) in range(a) x range(b), a*b just above n, permutes
range(a*b); a result of n or more is permuted again until it falls below n ("cycle walking", Black
and Rogaway 2002), which permutes range(n). a*b - n < a, so walking is rare.

Several corpora have fixed shares, exact over the run and without state. Positions come in blocks of K. After b blocks
corpus i has given C_i(b) sequences: b K w_i, rounded by
largest remainders (Hamilton's apportionment), so that it is never a whole sequence away from its share at
the end of a block. Inside a block the slots are permuted; the first of the permuted slots belong to the
first corpus, and so on. K is large enough for every corpus to have at least one whole sequence in a block:
then no C_i ever falls. A corpus gives its sequences in its own order, except inside blocks too large to be
worked out at once. All of it is arithmetic on the position, so that any position costs the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal

import numpy as np

Order = Literal["shuffled", "sequential"]

ROUNDS = 6
_MASK = (1 << 64) - 1
_SHIFT = np.uint64(32)
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)

AT_ONCE = 1024
"""Positions whose order is worked out at once: one costs nearly as much as a thousand."""


class Blocks:
    """An order worked out by blocks of `size` positions, one of which is kept. It ends in a shorter block, or never."""

    def __init__(self, size: int, worked_out: Callable[[int], np.ndarray]) -> None:
        """`worked_out` gives the block of a number, (..., size); what is behind the end is empty."""
        self._size = size
        self._worked_out = worked_out
        self._kept: tuple[int, np.ndarray] | None = None

    def run(self, position: int, count: int) -> np.ndarray:
        """(..., count): what stands from `position` on; less where it ends."""
        if position < 0 or count <= 0:
            raise ValueError(f"no batch of {count} sequences at position {position}")
        parts = []
        while count:
            number, inside = divmod(position, self._size)
            kept = self._kept
            if kept is None or kept[0] != number:
                # Replaced whole: a thread may read ahead.
                kept = self._kept = (number, self._worked_out(number))
            parts.append(kept[1][..., inside : inside + count])
            taken = parts[-1].shape[-1]
            if not taken:
                break
            position += taken
            count -= taken
        return np.concatenate(parts, axis=-1)


class EpochOrder(Blocks):
    """The item out of `n` at each position, epoch after epoch. Position p is in epoch p // n."""

    def __init__(self, n: int, order: Order, seed: int) -> None:
        super().__init__(AT_ONCE, lambda block: self.at(block * AT_ONCE + np.arange(AT_ONCE)))
        self._n = n
        self._order = order
        self._seed = seed

    def at(self, positions: np.ndarray) -> np.ndarray:
        """int64 (n,): the items at any positions. Meant for many at once."""
        epochs, inside = np.divmod(positions, self._n)
        if self._order == "sequential":
            return inside
        out = np.empty_like(inside)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            out[chosen] = permuted(inside[chosen], self._n, seed=self._seed, epoch=epoch)
        return out


def permuted(positions: np.ndarray, n: int, *, seed: int, epoch: int) -> np.ndarray:
    """The items that stand at `positions` (any shape, in range(n)) in the order of an epoch.

    int64 of the same shape. Over all positions every item of range(n) comes up exactly once.
    """
    values = np.asarray(positions, dtype=np.uint64)
    if n <= 1:
        return np.zeros(values.shape, dtype=np.int64)
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    keys = _round_keys(seed, epoch)
    out = _feistel(values, a, b, keys)
    outside = out >= n
    while outside.any():
        out[outside] = _feistel(out[outside], a, b, keys)
        outside = out >= n
    return out.astype(np.int64)


def _feistel(values: np.ndarray, a: int, b: int, keys: list[np.uint64]) -> np.ndarray:
    width, height = np.uint64(a), np.uint64(b)
    right, left = np.divmod(values, width)
    for number, key in enumerate(keys):
        if number % 2:
            right = (right + _mixed(left, key) % height) % height
        else:
            left = (left + _mixed(right, key) % width) % width
    return np.asarray(right * width + left)


def _mixed(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """A 32-bit hash of each value under a key."""
    mixed = (values + key) * _MULTIPLIER
    mixed ^= mixed >> _SHIFT
    mixed *= _MULTIPLIER
    return np.asarray(mixed >> _SHIFT)


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    """One 64-bit key per round, by SplitMix64 from the seed and the epoch."""
    state = _splitmix(_splitmix(seed & _MASK) ^ (epoch & _MASK))
    keys = []
    for _ in range(ROUNDS):
        state = _splitmix(state)
        keys.append(np.uint64(state))
    return keys


def _splitmix(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


_LEAST_BLOCK = 1024
_LARGEST_IN_ORDER = 1 << 16
"""Positions of the largest block in which each corpus keeps its own order: a megabyte to remember."""


class Shares:
    """The corpus that each position takes from, and the position in that corpus."""

    def __init__(self, weights: Sequence[float], *, seed: int) -> None:
        """`weights` above 0; what counts is their ratio."""
        exact = [Fraction(weight) for weight in weights]
        whole = sum(exact, Fraction(0))
        self.weights = tuple(weight / whole for weight in exact)
        needed = max(_LEAST_BLOCK, -(-1 // min(self.weights)))
        self.block = -(-needed // AT_ONCE) * AT_ONCE
        """K of above, a multiple of `AT_ONCE`."""
        self._seed = seed
        self._blocks = Blocks(self.block, self._in_order)

    def given(self, blocks: int) -> np.ndarray:
        """int64 (corpora,): sequences that each corpus has given after `blocks` blocks."""
        total = blocks * self.block
        exact = [total * weight for weight in self.weights]
        floors = [int(share) for share in exact]  # rounds down: none is negative
        missing = total - sum(floors)
        largest = sorted(range(len(exact)), key=lambda i: (floors[i] - exact[i], i))
        for i in largest[:missing]:
            floors[i] += 1
        return np.array(floors, dtype=np.int64)

    def at(self, position: int, count: int) -> np.ndarray:
        """int64 (2, count): the corpora, and their own positions. All lie in one block."""
        if self.block <= _LARGEST_IN_ORDER:
            return self._blocks.run(position, count)
        block, inside = divmod(position, self.block)
        return self._slots(block, np.arange(inside, inside + count))

    def _in_order(self, block: int) -> np.ndarray:
        """The same numbers of each corpus, ascending: then an epoch of its own ends before the next."""
        corpora, own = slots = self._slots(block, np.arange(self.block))
        own[np.argsort(corpora, kind="stable")] = own[np.lexsort((own, corpora))]
        return slots

    def _slots(self, block: int, inside: np.ndarray) -> np.ndarray:
        before = self.given(block)
        edges = np.cumsum(self.given(block + 1) - before)
        slots = permuted(inside, self.block, seed=self._seed, epoch=block)
        corpora = np.searchsorted(edges, slots, side="right")
        begins = np.concatenate(([0], edges[:-1]))
        return np.stack((corpora, before[corpora] + slots - begins[corpora]))
