"""The order is a permutation, another one every epoch, and looks like chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.data.order import permuted


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_every_window_comes_up_exactly_once_an_epoch(n: int, seed: int, epoch: int) -> None:
    found = permuted(np.arange(n), n, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(found), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 997, 65536, 65537])
def test_small_and_prime_numbers_of_windows_are_permuted(n: int) -> None:
    found = permuted(np.arange(n), n, seed=1, epoch=2)
    assert np.array_equal(np.sort(found), np.arange(n))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2**40), st.data())
def test_a_position_needs_no_other_position(n: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    together = permuted(positions, n, seed=3, epoch=4)
    assert [int(permuted(np.array([p]), n, seed=3, epoch=4)[0]) for p in positions] == list(
        together
    )
    assert together.min() >= 0
    assert together.max() < n


def test_epochs_and_seeds_differ() -> None:
    orders = {
        permuted(np.arange(100), 100, seed=seed, epoch=epoch).tobytes()
        for seed in range(10)
        for epoch in range(10)
    }
    assert len(orders) == 100


@pytest.mark.parametrize("position", [0, 1, 37, 99])
def test_the_window_at_a_position_is_uniform_over_seeds(position: int) -> None:
    n, draws = 100, 4000
    at = np.array([position])
    found = [int(permuted(at, n, seed=seed, epoch=0)[0]) for seed in range(draws)]
    counts = np.bincount(found, minlength=n)
    chi_squared = float(((counts - draws / n) ** 2 / (draws / n)).sum())
    assert 50 < chi_squared < 170  # 99 degrees of freedom; either side is beyond one in 10,000


def test_neighbours_in_the_order_are_unrelated() -> None:
    n = 100_003
    found = permuted(np.arange(n), n, seed=0, epoch=0)
    correlation = np.corrcoef(found[:-1], found[1:])[0, 1]
    assert abs(correlation) < 0.015  # 4.7 standard errors
    steps = np.diff(found)
    assert np.unique(steps).size > 0.6 * n  # chance gives about 0.74
