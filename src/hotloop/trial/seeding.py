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

from hotloop.core.child import RESUME_TRACE, SAME_RANDOMNESS, SEED
from hotloop.probe.imports import after_import


def install_from_environment() -> None:
    """Seed, if the trial asked for it."""
    if not (asked := os.environ.get(SAME_RANDOMNESS)):
        return
    seed = int(asked.partition(os.pathsep)[2] or SEED)
    random.seed(seed)
    after_import(
        {
            "numpy.random": lambda numpy_random: _seed_numpy(numpy_random, seed),
            "torch": lambda torch: torch.manual_seed(seed),
            # Compiled dropout draws other numbers than eager otherwise.
            "torch._inductor.config": lambda config: setattr(config, "fallback_random", True),
        }
    )
    if (
        RESUME_TRACE not in os.environ
    ):  # a resume starts workers where the training went on with them: that shows
        after_import({"torch.utils.data.dataloader": _draw_in_each_epoch})


def _seed_numpy(numpy_random: Any, own: int) -> None:
    numpy_random.seed(own)
    original, numbers = numpy_random.default_rng, count()

    def default_rng(seed: Any = None) -> Any:
        """Without a seed, each generator has one of its own, the same in every run."""
        return original([own, next(numbers)] if seed is None else seed)

    numpy_random.default_rng = default_rng


def _draw_in_each_epoch(dataloader: Any) -> None:
    """Have persistent workers cost a number in each epoch, as those that start again do: the order of samples is then the same with both."""
    original = dataloader._BaseDataLoaderIter._reset

    def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        original(iterator, loader, first_iter)
        if not first_iter:
            torch = dataloader.torch
            drawn = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            iterator._base_seed = drawn.item()

    dataloader._BaseDataLoaderIter._reset = reset
