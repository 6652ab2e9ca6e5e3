"""Whether random numbers were drawn between two looks at the generators."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hotloop.probe.attach.batch_times import random_state, same_state


@pytest.mark.parametrize(
    ("draw", "drew"),
    [
        (lambda: sum(range(9)), False),
        (random.random, True),
        (lambda: torch.rand(1), True),
        (np.random.rand, True),
        (lambda: np.random.shuffle([1, 2]), True),
        (lambda: np.random.default_rng(0).random(), False),
    ],
)
@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.PCG64, np.random.Philox])
def test_what_is_drawn_from_a_global_generator_is_seen(
    draw: Callable[[], Any], drew: bool, generator: type[np.random.BitGenerator]
) -> None:
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(generator(5))
    try:
        before = random_state()
        draw()
        assert same_state(before, random_state()) is not drew
    finally:
        np.random.set_bit_generator(usual)
