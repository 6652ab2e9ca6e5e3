"""Batches made by worker processes while the model computes: `num_workers` of the loader that trains."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.judge.thresholds import IDLE_FETCH
from hotloop.judge.worker_count import worker_count
from hotloop.optimizations.optimization import (
    USUAL_PREFETCH,
    BatchesAhead,
    Optimization,
    live_hook,
)
from hotloop.optimizations.source_edit import Keywords, SourceEdit

_OTHER_RNG = "its batches then draw their random numbers in the workers: the same samples, augmented with others, as with another seed"
_RESTARTED = (
    "its workers start again with each epoch, as they did where it was confirmed; `persistent_workers=True` may be added by hand where the script changes nothing of the dataset or the collate "
    "function between epochs (`dataset.set_epoch(e)`, say); shuffling and dropout then draw other numbers "
    "from the second epoch on, as with another seed"
)
"""torch draws one number whenever it starts workers, and starts these once; what they hold stays what it was."""
_PERSISTENT = (
    "its workers live on from epoch to epoch, as they did where it was confirmed: shuffling and dropout draw other "
    "numbers from the second epoch on, as with another seed, and what the script changes of the dataset or the "
    "collate function between epochs would not reach them (nothing such was seen)"
)
SHORT_EPOCH_S = 10.0
"""Starting workers takes a noticeable part of an epoch that is shorter."""
WITHOUT_WORKERS: dict[str, Any] = {
    "persistent_workers": False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "timeout": 0,
}
"""torch refuses anything else of these where a loader has no workers."""


def _values_for(census: Census) -> tuple[Any, ...]:
    loader, number = census.slowest_loader(), worker_count(census)
    if loader is None or loader.iterable or number is None:
        return ()
    if number and _may_persist(census):
        return (f"{number} persistent",)
    return () if number == loader.num_workers else (number,)


def _may_persist(census: Census) -> bool:
    """Whether workers may live on from epoch to epoch, and save something by it.

    Shuffling draws other numbers then: not where workers that start again would give the same bits.
    """
    loader = census.slowest_loader()
    if loader is None or loader.persistent_workers or loader.changes_between_epochs is not False:
        return False
    if not loader.per_epoch or census.profiled_step_s is None:
        return False
    if not loader.draws_random and worker_count(census) != loader.num_workers:
        return False
    epoch_s = loader.per_epoch / census.batches_per_step() * census.profiled_step_s
    return epoch_s < SHORT_EPOCH_S


def _number(value: Any) -> int:
    return int(str(value).split()[0])


def _persists(value: Any) -> bool:
    return str(value).endswith("persistent")


def _setting(value: Any) -> dict[str, Any]:
    persistent = {"persistent_workers": True} if _persists(value) else {}
    return {"num_workers": _number(value)} | persistent


def _draws_random(census: Census) -> bool:
    loader = census.slowest_loader()
    return loader is not None and (bool(loader.draws_random) or _may_persist(census))


def _patch_note(value: Any, census: Census, given: Collection[str]) -> str:
    if not value:
        return ""
    notes = [_OTHER_RNG] if _draws_random(census) else []
    epochs = max((each.num_epochs for each in census.loaders if each.trains), default=0)
    if _persists(value):
        notes.append(_PERSISTENT)
    elif epochs > 1 and "persistent_workers" not in given:
        notes.append(_RESTARTED)
    return "; ".join(notes)


def batches_ahead(census: Census, value: Any = None) -> BatchesAhead | None:
    """What the slowest loader that trains has ready, with `value` workers or, without one, as the script has it."""
    loader = census.slowest_loader()
    if loader is None:
        return None
    number = loader.num_workers if value is None else _number(value)
    # Without workers a step makes its batch and then computes: n workers and the computing go on at once.
    most = number / loader.num_workers if loader.num_workers else number + 1.0
    factor = loader.prefetch_factor or USUAL_PREFETCH
    return BatchesAhead(number, number * factor, most if number > loader.num_workers else None)


def _expect(evidence: Mapping[str, Any], value: Any) -> tuple[float, float] | None:
    """What is left of a step of a loader without workers (DS-Analyzer, VLDB 2021): `max(rest, fetch / n)` of a step, and no less than the
    part of all CPUs that it keeps busy as it is. Up to a third more is usual: batches have to be sent."""
    share = evidence.get("data_wait_fraction")
    if (
        not isinstance(share, float)
        or not 0 < share < 1
        or evidence.get("num_workers")
        or not value
    ):
        return None
    left = max(1 - share, share / _number(value))
    busy = evidence.get("cpus_busy_fraction")
    if isinstance(busy, float):
        left = max(left, min(busy, 1.0))
    elif (evidence.get("fetch_cpu_fraction") or 1.0) > IDLE_FETCH:
        left = max(
            left, 1 / _number(value)
        )  # model and workers share the CPUs: often as many as workers
    return 1 / min(left * 4 / 3, 1.0), 1 / left


def _observed(census: Census, value: Any) -> bool | None:
    seen = [each for each in census.loaders if each.trains]
    if not seen:
        return None
    wanted = _number(value), _persists(value)
    return any((each.num_workers, each.persistent_workers and wanted[1]) == wanted for each in seen)


def _arguments(value: Any, given: Mapping[str, Any]) -> dict[str, Any] | str:
    torch: Any = sys.modules["torch"]
    if isinstance(given["dataset"], torch.utils.data.IterableDataset):
        return "is an IterableDataset: what a worker gives depends on how many there are"
    return _setting(value) | ({} if value else WITHOUT_WORKERS)


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    where_given = {} if value else {name: repr(each) for name, each in WITHOUT_WORKERS.items()}
    values = {name: repr(each) for name, each in _setting(value).items()}
    return Keywords("torch.utils.data", ("DataLoader",), values, where_given=where_given)


LOADER_WORKERS = Optimization(
    name="loader_workers",
    summary="Batches made by worker processes while the model computes, in the same order.",
    parity_class="bitwise",
    settings=(2, 4, "2 persistent", "4 persistent"),
    argument="num_workers",
    setting=_setting,
    values_for=_values_for,
    needs="a dataset by index, and another number of workers than it has",
    observed=_observed,
    answers=("HL101", "HL102", "HL103", "HL104", "HL106", "HL108", "HL110", "HL201"),
    source_form="DataLoader(dataset, ..., num_workers=4)",
    source_edit=_source_edit,
    trainer_arguments=lambda value, applied_to: ", ".join(
        f"dataloader_{name}={each}" for name, each in _setting(value).items()
    ),
    patch_note=_patch_note,
    leaves=(
        "an IterableDataset; a place that the trial does not reach; what gives other samples with workers, draws the same "
        "random numbers in each, or cannot be sent to them, is rejected by the trial"
    ),
    of_loader=True,
    live_form=live_hook("set_arguments", _arguments),
    expect=_expect,
    other_draws_in=_draws_random,
    over="all",
    batches_ahead=batches_ahead,
    smaller=lambda value: tuple(
        f"{number} persistent" if _persists(value) else number
        for number in range(_number(value) - 1, 1, -1)
    ),
    risks=(
        "Each worker holds the dataset. A dataset or collate function that draws random numbers (crops, flips, noise, "
        "mixup) draws them in the workers: the same samples, augmented with other numbers, and dropout and later "
        "epochs' shuffling draw others too, as with another seed. What has a generator of its own repeats its numbers "
        "in every worker. Datasets that count, or that the script changes while it trains, give other batches; so "
        "does a batch sampler that shuffles in `__iter__`, which torch then calls twice. Workers start "
        "again with each epoch, unless epochs are short and nothing of the dataset was seen to change between them. Files and connections that are open when a worker is forked are shared with it. "
        "Fetching many batches at once loads the disk or server behind them."
    ),
)
