"""The order of windows: a pure function of (seed, epoch, position), in constant memory.

A Feistel network over pairs (left, right) in range(a) x range(b), a*b just above n, permutes
range(a*b); a result of n or more is permuted again until it falls below n ("cycle walking", Black
and Rogaway 2002), which permutes range(n). a*b - n < a, so walking is rare.
"""

from __future__ import annotations

import math

import numpy as np

ROUNDS = 6
_MASK = (1 << 64) - 1
_SHIFT = np.uint64(32)
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)


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
