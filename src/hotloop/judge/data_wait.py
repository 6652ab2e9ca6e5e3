"""Why the training waits for data: one cause, or none that can be told from what was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from hotloop.core.census import Census, LoaderUse
from hotloop.core.step import StepRecord
from hotloop.judge.attribute import under_way
from hotloop.judge.judged_run import JudgedRun
from hotloop.judge.thresholds import (
    COLLATE_SHARE,
    COPIED_SAMPLE_S,
    CPUS_FULL,
    FOREIGN,
    IDLE_FETCH,
    JITTER_TIMES,
    MODERATE,
    NOTICEABLE,
    RESTART_SHARE,
    RESTART_TIMES,
    WORKERS_BUSY,
)
from hotloop.judge.worker_count import costs_more_than_it_brings

Cause = Literal[
    "unknown", "serial", "collate", "too_few_workers", "cpus_full", "io", "jitter", "overhead",
    "others", "copying", "iterator",
]  # fmt: skip
"""HL101 speaks of `unknown`, of `others` (programs that fill the machine and may be why), of `copying` (whole
batches are copied from memory, which workers do no faster) and of `iterator` (each batch is the first of a new one)."""
OTHER_PROGRAMS = "other_programs_fraction"
"""In the evidence of a wait whose cause other programs hide: their share of the machine's CPUs."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waits within an epoch; those for an epoch's first batch are in `restarts`."""

    cause: Cause
    share: float
    """Exposed, of wall time: what would be gone without the cause."""
    loader: LoaderUse | None
    workers_busy: float | None = None
    """Share of their time in which the workers made batches."""
    cpus_busy: float | None = None
    """Share of the CPUs that the process may use."""
    batches_per_step: float | None = None
    step_s: float | None = None
    """Mean over all steps under way."""


def why_waiting(run: JudgedRun) -> Waiting | None:
    """`None` where the waits cost less than 5 %, or it can not be told that they cost anything.

    Waits for the first batch of an epoch and pinning in the main process are left out where findings of
    their own name them.
    """
    first, others = _waits(under_way(run.measurement.records))
    usual = median(others or [math.inf])
    host = run.host("data_wait") - pinning_share(run)
    if restarts(run) is not None:
        host -= _beyond(usual, first) / run.breakdown.wall_s
    share = run.exposed(max(host, 0.0))
    if share < NOTICEABLE:
        return None
    census, loader = run.census, run.loader
    if loader is None:
        return Waiting("unknown", share, None)
    step_s = run.breakdown.wall_s / run.breakdown.num_steps
    batches = loader.num_batches / run.breakdown.counted_steps
    busy = None
    if loader.num_workers and loader.fetch_s is not None:
        busy = min(loader.fetch_s * batches / (loader.num_workers * step_s), 1.0)
    cpus = run.cpus
    cpus_busy = census.cpu_busy / cpus if census.cpu_busy is not None and cpus else None
    if loader.starts_anew:
        cause: Cause = "iterator"
    elif loader.num_workers:
        late = _beyond(usual, others) / run.breakdown.wall_s
        saved = share * (1 - (loader.fetch_s or 0.0) / loader.wait_s) if loader.wait_s else 0.0
        cause = _cause_with_workers(
            loader, busy, cpus, cpus_busy, shared=is_crowded(census), late=late, saved=saved
        )
        if cause == "jitter":
            share = min(share, late)
        if cause == "overhead":
            share = saved  # without workers the training makes the batch itself
    else:
        waited = run.host("data_wait")
        turns = _turns_got(census, loader, cpus, waited) if run.on_cpu else None
        cause = _cause_without(loader, cpus, turns if is_crowded(census) else 1.0)
    if cause in ("unknown", "others", "copying") and share < MODERATE:
        return None  # every batch has to be fetched or copied: that much alone is no sickness
    return Waiting(cause, share, loader, busy, cpus_busy, batches, step_s)


def is_crowded(census: Census) -> bool:
    """Other programs fill the machine: who gets little CPU time may only wait for its turn."""
    busy, foreign = census.machine_busy, census.foreign_busy
    return busy is not None and foreign is not None and busy >= CPUS_FULL and foreign >= FOREIGN


def _turns_got(
    census: Census, loader: LoaderUse, cpus: float | None, waited: float
) -> float | None:
    """Which part of the CPU time that its threads could use they got while computing, on a CPU.

    What stands between them and all of it is other programs; a fetch had to share as much.
    """
    fetching = loader.fetch_cpu_fraction
    if census.cpu_busy is None or fetching is None or not cpus or not 0 < waited < 1:
        return None
    computing = (census.cpu_busy - waited * fetching) / (1 - waited)
    return min(max(computing / min(census.num_threads or 1, cpus), 0.0), 1.0)


def _cause_without(loader: LoaderUse, cpus: float | None, turns: float | None) -> Cause:
    """turns: the part of its CPU time that a fetch can have got at most; `None`: not known."""
    cpu = loader.fetch_cpu_fraction
    if cpu is not None and cpu <= IDLE_FETCH:
        # Most of the time it did not compute: it waited for a disk, or for its turn.
        return "io" if turns is not None and cpu <= IDLE_FETCH * turns else "others"
    if cpus is not None and cpus < 2:
        return "cpus_full"  # a worker would take its time from the training
    samples = loader.batch_size or 0
    copies = (loader.fetch_s or math.inf) < COPIED_SAMPLE_S * samples
    if loader.in_memory and copies and not loader.stacks_tensors:
        return "copying"
    return "collate" if _mostly_collates(loader) else "serial"


def _cause_with_workers(
    loader: LoaderUse,
    busy: float | None,
    cpus: float | None,
    cpus_busy: float | None,
    *,
    shared: bool,
    late: float,
    saved: float,
) -> Cause:
    if loader.fetch_s is None or busy is None:
        return "unknown"
    full = cpus_busy >= CPUS_FULL if cpus_busy is not None else None
    if shared and not full:
        return "others"  # who is late may only have waited for its turn
    overhead = costs_more_than_it_brings(loader) and saved >= NOTICEABLE
    if busy >= WORKERS_BUSY and not overhead:
        cpu = loader.fetch_cpu_fraction
        # On full CPUs a fetch gets little CPU time because others have it.
        if cpu is not None and cpu <= IDLE_FETCH and full is False:
            return "io"
        if cpus is None:
            return "unknown"
        if full or (full is None and loader.num_workers >= cpus):
            return "cpus_full"
        return "collate" if _mostly_collates(loader) else "too_few_workers"
    if shared:
        return "others"
    if loader.wait_s is None:
        return "unknown"
    if overhead:
        return "overhead"
    if late >= NOTICEABLE and loader.wait_p99_s is not None:
        return "jitter" if loader.wait_p99_s >= JITTER_TIMES * loader.wait_s else "unknown"
    return "unknown"


def _mostly_collates(loader: LoaderUse) -> bool:
    if loader.collate_s is None or not loader.fetch_s:
        return False
    return loader.collate_s >= COLLATE_SHARE * loader.fetch_s


def pinning_share(run: JudgedRun) -> float:
    """Share of wall time in which the main process copied batches into pinned memory."""
    loader = run.loader
    if loader is None or not loader.pin_memory or loader.num_workers or loader.pin_s is None:
        return 0.0
    return min(run.share_of_wall(loader.pin_s * loader.num_batches), run.host("data_wait"))


@dataclass(frozen=True, slots=True)
class Restarts:
    """First batches of epochs, as far as they took longer than others."""

    share: float
    """Exposed, of the wall time of whole epochs."""
    first_wait_s: float
    median_wait_s: float
    num_seen: int


def restarts(run: JudgedRun) -> Restarts | None:
    """`None` where they cost too little, or none was seen, or the length of an epoch is not known."""
    steps_seen = under_way(run.measurement.records, after_profiler=True)
    first, others = _waits(steps_seen)
    if not first or not others:
        return None
    usual = median(others)
    typical_first = median(first)
    if typical_first < RESTART_TIMES * usual:
        return None
    steps = _steps_of_epoch(run)
    if steps is None:
        return None
    excess = typical_first - usual
    with_phases = [record.wall_s for record in steps_seen if record.host]
    mean_other_s = (math.fsum(with_phases) - math.fsum(first)) / len(with_phases)
    share = run.exposed(excess / (excess + steps * mean_other_s))
    if share < RESTART_SHARE:
        return None
    return Restarts(share, typical_first, usual, len(first))


def _steps_of_epoch(run: JudgedRun) -> float | None:
    """From the loader where it knows, and from what lies between two first batches: fewer where the loop leaves its epochs early."""
    known: list[float] = []
    loader = run.loader
    if loader is not None and loader.per_epoch and loader.num_batches:
        known = [max(loader.per_epoch * run.breakdown.counted_steps / loader.num_batches, 1.0)]
    steps = under_way(run.measurement.records, after_profiler=True)
    drawn = any(record.left_out for record in steps)
    at = [i if drawn else r.step for i, r in enumerate(steps) if "epoch" in r.tags]
    # Of steps that were drawn few begin an epoch, and what lies between two of them says little.
    if len(at) > 1 and not (known and drawn):
        known.append((at[-1] - at[0]) / (len(at) - 1))
    return min(known, default=None)


def _beyond(usual: float, waits: Sequence[float]) -> float:
    """Seconds by which batches came later than usual: a longer queue hides at most that."""
    return math.fsum(max(wait - usual, 0.0) for wait in waits)


def _waits(records: Sequence[StepRecord]) -> tuple[list[float], list[float]]:
    """Seconds waited in the steps that began an epoch, and in all others."""

    def wait(record: StepRecord) -> float:
        return record.host.get("data_wait", 0.0)

    steps = [record for record in records if record.host]
    first = [wait(record) for record in steps if "epoch" in record.tags]
    return first, [wait(record) for record in steps if "epoch" not in record.tags]
