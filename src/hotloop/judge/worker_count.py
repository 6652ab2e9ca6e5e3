"""How many worker processes a loader is given: what findings advise and what the fix tries. Standard library alone."""

from __future__ import annotations

import math

from hotloop.core.census import Census, LoaderUse
from hotloop.judge.thresholds import IDLE_FETCH, OVERHEAD_MARGIN

MOST_BLOCKED = 32
ENOUGH_BLOCKED = 8
"""Workers for a dataset that waits: at least as many, since they cost little, and a step that other programs
disturbed looks longer than it is."""


def worker_count(census: Census) -> int | None:
    """As many as make batches at the pace of the rest of the step: `n = fetch / rest`. `None`: not known.

    Where making one takes CPU time, at most the CPUs of this rank. Where it waits, one more than that for
    the batches that take longer, and no fewer than eight: they wait beside each other on one CPU. None at all
    where workers cost more than they bring (HL110).
    """
    loader = census.slowest_loader()
    if loader is None or not loader.fetch_s or loader.starts_anew:
        return None
    if costs_more_than_it_brings(loader):
        return 0
    cpus = max(int((census.cpus or 1) / (census.num_local_ranks or 1)), 1)
    per_step = loader.fetch_s * census.batches_per_step()
    rest_s = rest_of_step(census, loader)
    wanted = math.ceil(per_step / rest_s) if rest_s else None
    fraction = loader.fetch_cpu_fraction
    if fraction is not None and fraction <= IDLE_FETCH:
        most = min(max(int(cpus / max(fraction, 1e-3)), 2), MOST_BLOCKED)
        number = min(max((wanted or 0) + 1, ENOUGH_BLOCKED), most)
    else:
        number = min(wanted if wanted is not None else cpus, cpus)
    # Two show what one hides for an epoch: a dataset with random numbers or a count of its own.
    return max(number, 2 if loader.draws_random else 1)


def more_workers(census: Census | None) -> int | None:
    """The same where it is more than the loader has; `None`: more of them are not worth trying."""
    loader = census.slowest_loader() if census is not None else None
    number = worker_count(census) if census is not None else None
    return number if loader is not None and number and number > loader.num_workers else None


def costs_more_than_it_brings(loader: LoaderUse) -> bool:
    """Whether a batch is waited for longer than making it takes, although workers make it."""
    if not loader.num_workers or not loader.fetch_s or loader.wait_s is None:
        return False
    return loader.wait_s > OVERHEAD_MARGIN * loader.fetch_s


def rest_of_step(census: Census, loader: LoaderUse) -> float | None:
    """Seconds of a step without its waits for data, as far as the profiled steps tell."""
    if census.profiled_step_s is None or loader.wait_s is None:
        return None
    waited = census.profiled_wait_s
    if waited is None:
        waited = loader.wait_s * census.batches_per_step()
    rest = census.profiled_step_s - waited
    return max(rest, 0.02 * census.profiled_step_s)
