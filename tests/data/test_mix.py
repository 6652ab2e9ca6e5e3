"""The shares of a mix are exact, whatever the position is."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.data import order as module
from hotloop.data.loader import Loader, Mix, PlainRows
from hotloop.data.order import Shares
from token_streams import token_stream

WEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6)


def loader(tokens: int, first_id: int, *, seed: int = 0) -> Loader:
    """Of one document; token k has id `first_id + k`."""
    stream = token_stream([tokens], first_id=first_id)
    return Loader(PlainRows(stream, context=4), order="shuffled", seed=seed)


@settings(max_examples=100, deadline=None)
@given(WEIGHTS, st.integers(0, 10**9))
def test_counts_are_within_one_of_their_share_at_every_block(
    weights: list[float], blocks: int
) -> None:
    shares = Shares(weights, seed=0)
    counts, following = shares.given(blocks), shares.given(blocks + 1)
    total = blocks * shares.block
    assert counts.sum() == total
    assert all(
        abs(int(count) - total * Fraction(weight) / sum(map(Fraction, weights))) < 1
        for count, weight in zip(counts, weights)
    )
    assert (following >= counts).all()


@settings(max_examples=25, deadline=None)
@given(WEIGHTS, st.integers(0, 10**6))
def test_a_block_takes_each_of_its_windows_once(weights: list[float], block: int) -> None:
    shares = Shares(weights, seed=3)
    if shares.block > 1 << 16:
        return
    corpora, positions = shares.at(block * shares.block, shares.block)
    before, after = shares.given(block), shares.given(block + 1)
    for index in range(len(weights)):
        own = np.sort(positions[corpora == index])
        assert np.array_equal(own, np.arange(before[index], after[index]))


def test_every_window_of_every_corpus_comes_up_once_an_epoch_of_its_own() -> None:
    mixed = Mix([loader(401, 0), loader(4001, 10_000)], [1, 3], seed=5)
    corpora, windows = mixed.sources(0, 2048)
    for index, size in ((0, 100), (1, 1000)):
        own = windows[corpora == index]
        assert len(own) == 2048 * (index * 2 + 1) // 4
        whole = len(own) // size * size
        counts = np.bincount(own, minlength=size)
        assert counts.min() >= whole // size
        assert counts.max() <= whole // size + 1
    assert mixed.num_sequences == 400


def test_batches_hold_the_windows_that_the_order_names() -> None:
    parts = [loader(401, 0), loader(4001, 10_000, seed=1), loader(81, 50_000, seed=2)]
    mixed = Mix(parts, [0.5, 0.3, 0.2], seed=5)
    corpora, windows = mixed.sources(1000, 64)
    batch = mixed.batch(1000, 64)
    first = np.array([0, 10_000, 50_000])[corpora] + windows * 4
    assert np.array_equal(batch.tokens, first[:, None] + np.arange(4))
    assert np.array_equal(batch.targets, batch.tokens + 1)
    assert batch.num_targets == 256
    assert mixed.count_targets(1000, 64) == 256


def test_any_split_into_batches_and_any_jump_gives_the_same_windows() -> None:
    def new() -> Mix:
        return Mix([loader(401, 0), loader(4001, 10_000)], [2, 1], seed=5)

    whole = new().batch(3000, 240).tokens
    assert np.array_equal(
        whole, np.concatenate([new().batch(3000 + at, 8).tokens for at in range(0, 240, 8)])
    )
    assert not np.array_equal(
        whole, Mix([loader(401, 0), loader(4001, 10_000)], [2, 1], seed=6).batch(3000, 240).tokens
    )


def test_position_a_billion_costs_what_position_zero_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, done = module.permuted, []

    def counted(positions: np.ndarray, n: int, *, seed: int, epoch: int) -> np.ndarray:
        done.append(len(positions))
        return real(positions, n, seed=seed, epoch=epoch)

    monkeypatch.setattr(module, "permuted", counted)
    work = []
    for position in (0, 10**9):
        done.clear()
        Mix([loader(401, 0), loader(4001, 10_000)], [2, 1], seed=5).batch(position, 8)
        work.append(sum(done))
    assert work[0] <= work[1] <= 2 * work[0]  # a batch may lie across two parts


@pytest.mark.parametrize("weights", [[1, 3], [3, 1], [1, 30_000]])
def test_no_window_comes_again_before_its_corpus_was_seen_whole(weights: list[float]) -> None:
    mixed = Mix([loader(401, 0), loader(4001, 10_000)], weights, seed=5)
    assert mixed.shares.block <= 1 << 16
    corpora, windows = mixed.sources(0, 1 << 16)
    for index, size in ((0, 100), (1, 1000)):
        own = windows[corpora == index]
        assert len(own) > 1
        for begin in range(0, len(own), size):
            epoch = own[begin : begin + size]
            assert len(np.unique(epoch)) == len(epoch)


def test_blocks_too_large_to_remember_still_give_each_window_once() -> None:
    shares = Shares([1, 100_000], seed=3)
    assert shares.block > 1 << 16
    parts = [shares.at(at, 1024) for at in range(0, shares.block, 1024)]
    corpora = np.concatenate([part[0] for part in parts])
    own = np.concatenate([part[1] for part in parts])
    for index, count in enumerate(shares.given(1)):
        assert np.array_equal(np.sort(own[corpora == index]), np.arange(count))
