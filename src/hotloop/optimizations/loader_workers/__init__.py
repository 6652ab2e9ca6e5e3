"""Batches made by worker processes while the model computes: `num_workers` of the loader that trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop.optimizations.optimization import BatchesAhead, Optimization, live_in
from hotloop.optimizations.source_edit import Keywords, SourceEdit

if TYPE_CHECKING:
    from hotloop.core.census import Census, LoaderUse


BLOCKED = 0.5
"""CPU seconds per second of fetching at or below which it mostly waits, as HL106 says."""
MOST_BLOCKED = 32
ENOUGH_BLOCKED = 8
"""Workers for a dataset that waits: at least as many, since they cost little, and a step that other programs
disturbed looks longer than it is."""
PERSISTENT_BY_HAND = (
    "`persistent_workers=True` may be added by hand where the script changes nothing of the dataset or the collate "
    "function between epochs (`dataset.set_epoch(e)`, say); shuffling and dropout then draw other numbers "
    "from the second epoch on, as with another seed"
)
"""torch draws one number whenever it starts workers, and starts these once; what they hold stays what it was."""
WITHOUT_WORKERS: dict[str, Any] = {
    "persistent_workers": False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "timeout": 0,
}
"""torch refuses anything else of these where a loader has no workers."""


def _values_for(census: Census) -> tuple[Any, ...]:
    """As many as make batches at the pace of the rest of the step: `n = fetch / rest`.

    Where making one takes CPU time, at most the CPUs of this rank. Where it waits, one more than that for
    the batches that take longer, and no fewer than eight: they wait beside each other on one CPU.
    """
    loader = census.slowest_loader()
    if loader is None or loader.iterable or not loader.fetch_s:
        return ()
    cpus = max(int((census.cpus or 1) / (census.num_local_ranks or 1)), 1)
    per_step = loader.fetch_s * max(census.microbatches or 1.0, 1.0)
    if loader.num_workers and loader.wait_s is not None and loader.wait_s > 1.5 * loader.fetch_s:
        return (0,)  # they cost more than they bring (HL110)
    rest_s = rest_of_step(census, loader)
    wanted = math.ceil(per_step / rest_s) if rest_s else None
    fraction = loader.fetch_cpu_fraction
    if fraction is not None and fraction <= BLOCKED:
        most = min(max(int(cpus / max(fraction, 1e-3)), 2), MOST_BLOCKED)
        number = min(max((wanted or 0) + 1, ENOUGH_BLOCKED), most)
    else:
        number = min(wanted if wanted is not None else cpus, cpus)
    # Two show what one hides for an epoch: a dataset with random numbers or a count of its own.
    number = max(number, 2 if loader.draws_random else 1)
    return (number,) if number != loader.num_workers else ()


def _draws(census: Census) -> bool:
    loader = census.slowest_loader()
    return loader is not None and bool(loader.draws_random)


def rest_of_step(census: Census, loader: LoaderUse) -> float | None:
    """Seconds of a step without its waits for data, as far as the profiled steps tell."""
    if census.profiled_step_s is None or loader.wait_s is None:
        return None
    waited = census.profiled_wait_s
    if waited is None:
        waited = loader.wait_s * max(census.microbatches or 1.0, 1.0)
    rest = census.profiled_step_s - waited
    return max(rest, 0.02 * census.profiled_step_s)


USUAL_PREFETCH = 2
"""Batches under way per worker: torch's own default."""


def batches_ahead(census: Census, value: Any = None) -> BatchesAhead | None:
    """Of the slowest loader that trains, with `value` workers or, without one, as the script has it."""
    loader = census.slowest_loader()
    if loader is None:
        return None
    number = loader.num_workers if value is None else int(value)
    # Without workers a step makes its batch and then computes: n workers and the computing go on at once.
    most = number / loader.num_workers if loader.num_workers else number + 1.0
    factor = loader.prefetch_factor or USUAL_PREFETCH
    return BatchesAhead(number, number * factor, most if number > loader.num_workers else None)


def _fewer(value: Any) -> tuple[Any, ...]:
    return tuple(range(int(value) - 1, 1, -1))


def _expect(evidence: Mapping[str, Any], value: Any) -> tuple[float, float] | None:
    """Of a loader without workers (DS-Analyzer, VLDB 2021): `max(rest, fetch / n)` of a step, and no less than the
    part of all CPUs that it keeps busy as it is. Up to a third more is usual: batches have to be sent."""
    share = evidence.get("data_wait_fraction")
    if (
        not isinstance(share, float)
        or not 0 < share < 1
        or evidence.get("num_workers")
        or not value
    ):
        return None
    left = max(1 - share, share / value)
    busy = evidence.get("cpus_busy_fraction")
    if isinstance(busy, float):
        left = max(left, min(busy, 1.0))
    elif (evidence.get("fetch_cpu_fraction") or 1.0) > BLOCKED:
        left = max(left, 1 / value)  # model and workers share the CPUs: often as many as workers
    return 1 / min(left * 4 / 3, 1.0), 1 / left


def _observed(census: Census, value: Any) -> bool | None:
    numbers = [loader.num_workers for loader in census.loaders if loader.trains]
    return value in numbers if numbers else None


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    where_given = {} if value else {name: repr(each) for name, each in WITHOUT_WORKERS.items()}
    values = {"num_workers": str(int(value))}
    return Keywords(
        "torch.utils.data", ("DataLoader",), values, where_given=where_given, at="loader"
    )


LOADER_WORKERS = Optimization(
    name="loader_workers",
    summary="Batches made by worker processes while the model computes, in the same order.",
    parity_class="bitwise",
    settings=(2, 4),
    argument="num_workers",
    values_for=_values_for,
    needs="a dataset by index, and another number of workers than it has",
    observed=_observed,
    answers=("HL101", "HL102", "HL103", "HL104", "HL106", "HL110", "HL201"),
    source_form="DataLoader(dataset, ..., num_workers=4)",
    source_edit=_source_edit,
    live_form=live_in(__name__),
    expect=_expect,
    other_draws_in=_draws,
    over="all",
    batches_ahead=batches_ahead,
    smaller=_fewer,
    conflicts=(),
    risks=(
        "Each worker holds the dataset. A dataset or collate function that draws random numbers (crops, flips, noise, "
        "mixup) draws them in the workers: the same samples, augmented with other numbers, and dropout and later "
        "epochs' shuffling draw others too, as with another seed. What has a generator of its own repeats its numbers "
        "in every worker. Datasets that count, or that the script changes while it trains, give other batches; so "
        "does a batch sampler that shuffles in `__iter__`, which torch then calls twice. Workers start "
        "anew with each epoch. Files and connections that are open when a worker is forked are shared with it. "
        "Fetching many batches at once loads the disk or server behind them."
    ),
)
