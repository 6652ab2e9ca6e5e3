"""What code draws random numbers from in this process, and whether it did. Standard library and torch alone."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

State = tuple[Any, torch.Tensor]


def random_state() -> State:
    """Of Python's generator, torch's, and NumPy's where it is loaded (torch may be without)."""
    numpy = sys.modules.get("numpy")
    drawn: Any = None
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        drawn = (kind, keys.tobytes() if hasattr(keys, "tobytes") else keys, *rest)
    return (random.getstate(), drawn), torch.get_rng_state()


def same_state(one: State, other: State) -> bool:
    """Whether nothing was drawn between the two."""
    return one[0] == other[0] and torch.equal(one[1], other[1])
