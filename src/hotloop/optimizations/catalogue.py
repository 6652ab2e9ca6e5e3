"""Every technique, by name, and what `auto` becomes on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.core.census import Census
from hotloop.core.judgement import ParityClass
from hotloop.optimizations.attention import ATTENTION
from hotloop.optimizations.channels_last import CHANNELS_LAST
from hotloop.optimizations.checkpointing import CHECKPOINTING
from hotloop.optimizations.clipping import CLIPPING
from hotloop.optimizations.compiling import COMPILE
from hotloop.optimizations.cudnn_benchmark import CUDNN_BENCHMARK
from hotloop.optimizations.deferred_reads import DEFERRED_READS
from hotloop.optimizations.fewer_logs import FEWER_LOGS
from hotloop.optimizations.fused_optimizer import FUSED_OPTIMIZER
from hotloop.optimizations.gc_schedule import GC_SCHEDULE
from hotloop.optimizations.gelu import GELU
from hotloop.optimizations.gradient_compression import GRADIENT_COMPRESSION
from hotloop.optimizations.host_memory import HOST_MEMORY
from hotloop.optimizations.item_cache import ITEM_CACHE
from hotloop.optimizations.loader_workers import LOADER_WORKERS
from hotloop.optimizations.optimization import Optimization
from hotloop.optimizations.pinned_copies import PINNED_COPIES
from hotloop.optimizations.precision import PRECISION
from hotloop.optimizations.prefetch import PREFETCH
from hotloop.optimizations.sdpa_backend import SDPA_BACKEND
from hotloop.optimizations.threads import THREADS

CATALOGUE: dict[str, Optimization] = {
    optimization.name: optimization
    for optimization in (
        *(PRECISION, COMPILE, ATTENTION, GELU, FUSED_OPTIMIZER, CLIPPING, HOST_MEMORY),
        GRADIENT_COMPRESSION,
        *(GC_SCHEDULE, THREADS, CHANNELS_LAST, CUDNN_BENCHMARK, SDPA_BACKEND),
        *(FEWER_LOGS, DEFERRED_READS, CHECKPOINTING),
        *(LOADER_WORKERS, PREFETCH, ITEM_CACHE, PINNED_COPIES),
    )
}
"""In the order in which `auto` is resolved: a later one may look at an earlier one's value."""

CONFIGURED: dict[str, Optimization] = {name: each for name, each in CATALOGUE.items() if each.key}
"""Those that hotloop's own trainer has a key for."""


_SEVERITY: tuple[ParityClass, ...] = (
    "bitwise",
    "reduction_order",
    "reduced_precision",
    "other_draws",
    "changes_training",
)
"""Each may change all that those before it may; `other_draws` is held to theirs with its random numbers held fixed."""


def parity_class_of(
    config: Mapping[str, Any], *, baseline: Mapping[str, Any] | None = None
) -> ParityClass:
    """The strongest class among the techniques in which two resolved flat configs differ.

    Without a baseline, from everything off. Each technique counts by the stronger of its classes on
    the two sides.
    """
    if baseline is None:
        baseline = {**config, **{o.key: o.off for o in CONFIGURED.values()}}
    classes = [
        o.parity_class_on(side)
        for o in CONFIGURED.values()
        if config[o.key] != baseline[o.key]
        for side in (config, baseline)
    ]
    return max(classes, key=_SEVERITY.index, default="bitwise")


def parity_of_live(names: Sequence[str], matmul_dtypes: Sequence[str] = ()) -> ParityClass:
    """The strongest class among techniques that are put into a foreign script.

    matmul_dtypes: those of its products, as its census has them. Where one is short, what rounds sums otherwise is
    rounded to its digits, as `Optimization.parity_class_on` says of our own trainer.
    """
    classes = [CATALOGUE[name].parity_class for name in names]
    strongest: ParityClass = max(classes, key=_SEVERITY.index, default="bitwise")
    if strongest == "reduction_order" and not _SHORT.isdisjoint(matmul_dtypes):
        return "reduced_precision"
    return strongest


def draws_otherwise(names: Sequence[str], census: Census | None) -> bool:
    """Whether one of them has batches draw other random numbers in a script that was seen so: `other_draws`."""
    found = [CATALOGUE[name].other_draws_in for name in names]
    return census is not None and any(draws is not None and draws(census) for draws in found)


_SHORT = frozenset({"bfloat16", "float16", "tf32"})
"""Types of products with fewer digits than float32, by their names in a census."""
