"""The same random numbers in every run of somebody's script, so that losses of two runs can be compared.

Runs inside the foreign interpreter before the script's own code: standard library alone, torch and
numpy where the script imports them. Only for runs whose losses are compared, never for those that are
timed. What a script seeds itself comes later and wins.
"""

from __future__ import annotations

import os
import random
from itertools import count
from typing import Any

from hotloop.core.child import SAME_RANDOMNESS, SEED
from hotloop.probe.imports import after_import


def install_from_environment() -> None:
    """Seed, if the trial asked for it."""
    if not os.environ.get(SAME_RANDOMNESS):
        return
    random.seed(SEED)
    after_import(
        {
            "numpy.random": _seed_numpy,
            "torch": lambda torch: torch.manual_seed(SEED),
            "torch._inductor.config": _draw_as_eager,
        }
    )


def _seed_numpy(numpy_random: Any) -> None:
    numpy_random.seed(SEED)
    original, numbers = numpy_random.default_rng, count()

    def default_rng(seed: Any = None) -> Any:
        """Without a seed, each generator has one of its own, the same in every run."""
        return original([SEED, next(numbers)] if seed is None else seed)

    numpy_random.default_rng = default_rng


def _draw_as_eager(config: Any) -> None:
    """Compiled dropout draws other numbers than eager otherwise."""
    config.fallback_random = True
