"""A longer queue of batches between a loader's workers and the training, so that it bridges a slow batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.judge.worker_count import rest_of_step
from hotloop.optimizations.optimization import (
    USUAL_PREFETCH,
    BatchesAhead,
    Optimization,
    leaving,
    live_hook,
)
from hotloop.optimizations.source_edit import Keywords

MOST = 64


def _values_for(census: Census) -> tuple[Any, ...]:
    """So many that a slow batch is begun early enough: `n` workers lead by `n x factor` steps, and what was
    waited for in spite of that has to be led by as well. At least twice as many as now, and 4."""
    loader = census.slowest_loader()
    if loader is None or loader.iterable or not loader.num_workers:
        return ()
    now = loader.prefetch_factor or USUAL_PREFETCH
    rest_s = rest_of_step(census, loader)
    late = (loader.wait_p99_s or 0.0) / (loader.num_workers * rest_s) if rest_s else 0.0
    return (min(max(4, 2 * now, now + math.ceil(late)), MOST),)


def _batches_ahead(census: Census, value: Any) -> BatchesAhead | None:
    loader = census.slowest_loader()
    if loader is None:
        return None
    return BatchesAhead(loader.num_workers, loader.num_workers * int(value))


def _observed(census: Census, value: Any) -> bool | None:
    factors = [each.prefetch_factor for each in census.loaders if each.trains and each.num_workers]
    return any((factor or 0) >= value for factor in factors) if factors else None


def _arguments(value: Any, given: Mapping[str, Any]) -> dict[str, Any] | str:
    return {"prefetch_factor": int(value)} if given["num_workers"] else "has no loader workers"


PREFETCH = Optimization(
    name="prefetch",
    summary="More batches under way per loader worker, so that a slow one is begun earlier.",
    parity_class="bitwise",
    settings=(4, 8),
    argument="prefetch_factor",
    values_for=_values_for,
    needs="a dataset by index, and loader workers",
    observed=_observed,
    answers=("HL109",),
    source_form="DataLoader(dataset, ..., num_workers=4, prefetch_factor=8)",
    source_edit=lambda value, facts: Keywords(
        "torch.utils.data",
        ("DataLoader",),
        {"prefetch_factor": str(int(value))},
        unless_zero="num_workers",
    ),
    trainer_arguments=lambda value, applied_to: f"dataloader_prefetch_factor={value}",
    leaves="a loader without workers; an IterableDataset",
    of_loader=True,
    live_form=live_hook("set_arguments", _arguments),
    expect=leaving("late_fraction", 0.0, 0.7),
    over="all",
    batches_ahead=_batches_ahead,
    conflicts=("loader_workers",),
    risks=(
        "The queue takes memory: workers x prefetch_factor x bytes of a batch. A sampler that draws random "
        "numbers as it goes draws them earlier, between other numbers of the training."
    ),
)
