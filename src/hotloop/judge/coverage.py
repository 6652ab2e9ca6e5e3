"""What was not looked at, in words: a cause that could not be seen is not a cause that is absent."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hotloop.core.census import Census
from hotloop.judge.attribute import STARTING_UP, under_way
from hotloop.judge.data_wait import is_crowded
from hotloop.judge.judged_run import JudgedRun, few_full
from hotloop.judge.own_code import own_code
from hotloop.judge.ranks import hides_waiting
from hotloop.judge.thresholds import COLLECTING

CLOSURE_LIMIT = 0.005
"""Phases that miss more of wall time than this are reported as such."""

_LEFT_OUT = {
    "compile": "in which something was compiled",
    "profiled": "under torch's profiler",
    "resumed": "that went on after a pause",
    "after_profiler": "after torch's profiler, which leaves memory that makes them faster",
}
_LOOKED_AT = {
    "loaders": "why data is waited for: no DataLoader was watched",
    "lines": "the script's own lines: not observed",
    "operators": "precision of products, attention, short operations, threads: the operations of a step "
    "were not looked at",
    "logs": "the calls that log: not watched",
    "saves": "the calls that save: not watched",
    "evaluations": "the places that evaluate: not watched",
}
_ON_AN_ACCELERATOR = {
    "copies": "copies to the device: not watched",
    "syncs": "waits of the host for the device: not watched",
}


def not_examined(run: JudgedRun) -> Iterator[str]:
    """One line each, in the order in which a reader should know."""
    yield from _of_time(run)
    if run.is_foreign and run.is_short:
        kept = under_way(run.measurement.records)
        yield (
            f"what a change would bring: {len(kept)} counted steps of "
            f"{_seconds(math.fsum(record.wall_s for record in kept))} together are too few to promise a gain"
            + (f"; about {run.enough_steps:,} steps in all would do" if run.enough_steps else "")
        )
    if run.measurement.census is None:
        yield "precision, compilation and optimizer: no census was taken"
        return
    yield from _of_model(run.census)
    if run.is_foreign:
        yield from _of_script(run)
        if not run.on_cpu:
            yield from _of_accelerator(run.census)


def _of_time(run: JudgedRun) -> Iterator[str]:
    records, breakdown = run.measurement.records, run.breakdown
    starting = STARTING_UP - {"warmup"}
    left_out = [r for r in records if starting & set(r.tags) and "warmup" not in r.tags]
    for tag, why in _LEFT_OUT.items():
        num = sum(next(t for t in _LEFT_OUT if t in record.tags) == tag for record in left_out)
        if num:
            yield f"{num} {'step' if num == 1 else 'steps'} {why}: not in the breakdown"
    if run.num_left_out:
        seconds = math.fsum(r.left_out_s or 0.0 for r in records)
        timed = sum(r.left_out or 0 for r in records)
        mean = f"; they took {1e3 * seconds / timed:.3g} ms on average" if timed else ""
        yield (
            f"{run.num_left_out:,} of the {run.num_made:,} steps: drawn at random and left out, so that "
            f"watching costs less{mean}"
        )
    if breakdown.closure_error_fraction > CLOSURE_LIMIT:
        yield (
            f"{100 * breakdown.closure_error_fraction:.1f} % of wall time: phases and wall time disagree"
        )
    if breakdown.device is None and not run.on_cpu:
        if any(record.device for record in records):
            yield (
                "when the device idled: its kernels were not seen, and the gaps between them not without "
                "them; so no wait of the host is called lost time"
            )
        else:
            yield "device time: without it a host wait can not be told from a busy device"


def _of_model(census: Census) -> Iterator[str]:
    if not census.matmul_dtypes:
        yield "precision of matrix products: not observed"
    elif not census.fast_dtypes:
        yield "faster precisions of this device: none is known"
    if census.compiled is None:
        yield "compilation: not observed"
    if census.optimizer is None:
        yield "optimizer implementation: not observed"


def _of_script(run: JudgedRun) -> Iterator[str]:
    census = run.census
    asked = _LOOKED_AT if run.on_cpu else _LOOKED_AT | _ON_AN_ACCELERATOR
    yield from (words for name, words in asked.items() if name not in census.seen)
    if others := census.other_trainings:
        made = ", ".join(f"{steps:,}" for steps in sorted(others, reverse=True)[:5])
        many = f"{len(others)} other processes" if len(others) > 1 else "1 other process"
        yield (
            f"{many} that trained as well, without a rank of their own ({made} steps): one is watched"
        )
    if hides_waiting(run):
        yield (
            "waiting for the other processes: where it happens inside the pass backward, it is not "
            "told from computing"
        )
    if "operators" in census.seen and run.operations is None:
        yield "the operations of a step: none was seen"
    if isinstance(why := own_code(run), str):
        yield f"the script's own code between the phases: {why}"
    if census.collections is None:
        yield "garbage collection: not watched"
    elif few_full(census.collections) and run.full_share() >= COLLECTING:
        yield "the share of full garbage collections: too few were seen to know how often they come"
    for phase, words in (("checkpoint", "saving"), ("eval", "evaluating")):
        once = any(r.host.get(phase) for r in run.measurement.records if "warmup" not in r.tags)
        if once and run.recurring(phase) is None:
            num = len(under_way(run.measurement.records, after_profiler=True))
            yield f"the share of {words}: in the {num:,} steps that were looked at it came once at most, so how often is not known"
    if run.loader is not None and run.loader.fetch_s is None:
        yield "the time to make a batch: not observed"
    if is_crowded(census):
        yield (
            f"what a quiet machine would show: other programs kept {100 * (census.foreign_busy or 0):.0f} % "
            "of the machine's CPUs busy, so times are rough, and waiting for a disk is not told from waiting "
            "for a CPU"
        )
    if census.cpu_busy is None:
        yield "how busy the CPUs were: not observed"


def _of_accelerator(census: Census) -> Iterator[str]:
    if census.device_memory_bytes is None or census.device_allocated_bytes is None:
        yield "memory of the device: not observed"
    if census.throttled_fraction is None:
        yield "heat and power of the device: no telemetry"
    if (census.num_ranks or 1) > 1:
        yield "which process is slower than the others: this is about one of them"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s"
