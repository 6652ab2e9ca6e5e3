"""Gradient accumulation that was seen, and how far it can go down before memory is full."""

from __future__ import annotations

from hotloop.core.census import SEVERAL_UPDATES, Census
from hotloop.judge.thresholds import FILLED


def accumulated(census: Census) -> int | None:
    """Microbatches per step, each of one batch; `None` where a step is one, is made otherwise, or was not counted.

    A GAN has several passes backward for one batch, or several updates in a step. The last step of an epoch may have
    fewer microbatches.
    """
    number = round(census.microbatches or 0.0)
    several = SEVERAL_UPDATES in census.notes or (census.num_ranks or 1) > 1
    if number < 2 or several or census.slowest_loader() is None:
        return None
    return number if census.batches_per_step() == number else None


def peak_bytes(census: Census) -> int | None:
    """Highest memory of the training, of its device where that has its own."""
    on_cpu = (census.device or "cpu").startswith("cpu")
    return census.host_peak_bytes if on_cpu else census.device_allocated_bytes


def fewer_that_fit(census: Census, host_limit_bytes: int | None) -> tuple[int, ...]:
    """Numbers of larger microbatches for the same samples per step, the fewest first; none where memory is not known.

    Weights and optimizer state do not grow with the batch, so that all of the memory times the factor is an upper limit.
    """
    number, peak = accumulated(census), peak_bytes(census)
    on_cpu = (census.device or "cpu").startswith("cpu")
    limit = host_limit_bytes if on_cpu else census.device_memory_bytes
    if number is None or not peak or not limit:
        return ()
    fewer = (each for each in range(1, number) if number % each == 0)
    return tuple(each for each in fewer if peak * number // each <= FILLED * limit)
