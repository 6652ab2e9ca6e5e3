"""Several corpora in fixed shares, exact over the run and without state.

Positions come in blocks of K. After b blocks corpus i has given C_i(b) sequences: b K w_i, rounded by
largest remainders (Hamilton's apportionment), so that it is never a whole sequence away from its share at
the end of a block. Inside a block the slots are permuted; the first of the permuted slots belong to the
first corpus, and so on. K is large enough for every corpus to have at least one whole sequence in a block:
then no C_i ever falls. A corpus gives its sequences in its own order, except inside blocks too large to be
worked out at once. All of it is arithmetic on the position, so that any position costs the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from hotloop.data.loader import Batch, Loader
from hotloop.data.order import permuted

_LEAST_BLOCK = 1024
_AT_ONCE = 1024
"""Positions worked out together; a block is a multiple of it."""
_LARGEST_IN_ORDER = 1 << 16
"""Positions of the largest block in which each corpus keeps its own order: half a megabyte to remember."""


class Shares:
    """The corpus that each position takes from, and the position in that corpus."""

    def __init__(self, weights: Sequence[float], *, seed: int) -> None:
        """`weights` above 0; what counts is their ratio."""
        exact = [Fraction(weight) for weight in weights]
        whole = sum(exact, Fraction(0))
        self.weights = tuple(weight / whole for weight in exact)
        needed = max(_LEAST_BLOCK, -(-1 // min(self.weights)))
        self.block = -(-needed // _AT_ONCE) * _AT_ONCE
        """K of above."""
        self._seed = seed
        self._kept: tuple[int, np.ndarray, np.ndarray] | None = None

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

    def at(self, position: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """int64 (count,) twice: the corpora, and their own positions. All lie in one block."""
        block, inside = divmod(position, self.block)
        assert inside + count <= self.block
        if self.block > _LARGEST_IN_ORDER:
            return self._slots(block, np.arange(inside, inside + count))
        kept = self._kept
        if kept is None or kept[0] != block:
            corpora, own = self._slots(block, np.arange(self.block))
            # The same numbers of each corpus, ascending: then an epoch of its own ends before the next.
            own[np.argsort(corpora, kind="stable")] = own[np.lexsort((own, corpora))]
            kept = self._kept = (block, corpora, own)  # whole at once: a thread may read ahead
        return kept[1][inside : inside + count], kept[2][inside : inside + count]

    def _slots(self, block: int, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        before = self.given(block)
        edges = np.cumsum(self.given(block + 1) - before)
        slots = permuted(inside, self.block, seed=self._seed, epoch=block)
        corpora = np.searchsorted(edges, slots, side="right")
        begins = np.concatenate(([0], edges[:-1]))
        return corpora, before[corpora] + slots - begins[corpora]


class Mix:
    """Sequences of several loaders in the shares of their weights. Each goes through epochs of its own."""

    unit = 1

    def __init__(self, loaders: Sequence[Loader], weights: Sequence[float], *, seed: int) -> None:
        self._loaders = tuple(loaders)
        self.shares = Shares(weights, seed=seed)
        self._block: tuple[int, np.ndarray, np.ndarray] | None = None
        self.num_windows = min(
            int(loader.num_windows / share) for loader, share in zip(loaders, self.shares.weights)
        )
        """Sequences after which the first corpus has been seen once, and begins again; to within a block,
        since shares are exact at the ends of blocks."""

    def batch(self, position: int, num_windows: int) -> Batch:
        """The `num_windows` sequences from `position` on."""
        corpora, windows = self.sources(position, num_windows)
        tokens = targets = starts = None
        num_targets = 0
        for index in np.unique(corpora).tolist():
            chosen = np.flatnonzero(corpora == index)
            read = self._loaders[index].rows.read(windows[chosen])
            if len(chosen) == num_windows:
                tokens, targets, starts = read.tokens, read.targets, read.document_starts
            else:
                if tokens is None or targets is None:
                    shape = (num_windows, read.tokens.shape[1])
                    tokens, targets = np.empty(shape, np.int64), np.empty(shape, np.int64)
                    starts = None if read.document_starts is None else np.empty(shape, np.bool_)
                tokens[chosen], targets[chosen] = read.tokens, read.targets
                if starts is not None:
                    starts[chosen] = read.document_starts
            num_targets += read.num_targets
        assert tokens is not None
        assert targets is not None
        return Batch(tokens, targets, num_targets, starts)

    def count_targets(self, position: int, num_windows: int) -> int:
        """`num_targets` of that batch, without reading its tokens."""
        corpora, windows = self.sources(position, num_windows)
        return sum(
            self._loaders[index].rows.count_targets(windows[corpora == index])
            for index in np.unique(corpora).tolist()
        )

    def sources(self, position: int, num_windows: int) -> tuple[np.ndarray, np.ndarray]:
        """int64 (num_windows,) twice: the corpus of each sequence, and its number there."""
        if position < 0 or num_windows <= 0:
            raise ValueError(f"no batch of {num_windows} sequences at position {position}")
        corpora, windows = [], []
        while num_windows:
            part, inside = divmod(position, _AT_ONCE)
            known = self._known(part)
            corpora.append(known[0][inside : inside + num_windows])
            windows.append(known[1][inside : inside + num_windows])
            position += len(corpora[-1])
            num_windows -= len(corpora[-1])
        return np.concatenate(corpora), np.concatenate(windows)

    def _known(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        kept = self._block
        if kept is not None and kept[0] == part:
            return kept[1], kept[2]
        corpora, positions = self.shares.at(part * _AT_ONCE, _AT_ONCE)
        windows = np.empty_like(positions)
        for index, loader in enumerate(self._loaders):
            chosen = corpora == index
            windows[chosen] = loader.indices_at(positions[chosen])
        self._block = (part, corpora, windows)
        return corpora, windows
