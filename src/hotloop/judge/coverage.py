"""What was not looked at, in words: a cause that could not be seen is not a cause that is absent."""

from __future__ import annotations

from collections.abc import Mapping

from hotloop.core.census import Census
from hotloop.core.judgement import Breakdown
from hotloop.core.measurement import Measurement
from hotloop.judge.attribute import STARTING_UP
from hotloop.judge.data_wait import is_crowded, training_loader
from hotloop.judge.exposure import (
    few_full,
    full_share,
    is_foreign,
    is_short,
    recurring,
    runs_on_cpu,
)
from hotloop.judge.own_code import why_no_own_code
from hotloop.judge.ranks import hides_waiting
from hotloop.judge.thresholds import COLLECTING

CLOSURE_LIMIT = 0.005
"""Phases that miss more of wall time than this are reported as such."""

_LEFT_OUT = {
    "compile": "in which something was compiled",
    "profiled": "under torch's profiler",
    "resumed": "that went on after a pause",
    "after_profiler": "after torch's profiler, whose traces in memory made them faster",
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


def not_examined(measurement: Measurement, breakdown: Breakdown) -> list[str]:
    """One line each, in the order in which a reader should know."""
    missing = _of_time(measurement, breakdown)
    census = measurement.census
    if is_foreign(census) and is_short(breakdown):
        missing.append(
            f"what a change would bring: {breakdown.counted_steps} counted steps of "
            f"{breakdown.counted_wall_s:.2g} s together are too few to promise a gain"
        )
    if census is None:
        missing.append("precision, compilation and optimizer: no census was taken")
        return missing
    missing += _of_model(census)
    if is_foreign(census):
        missing += _of_script(measurement, breakdown, census)
    return missing


def _of_time(measurement: Measurement, breakdown: Breakdown) -> list[str]:
    missing = []
    starting = STARTING_UP - {"warmup"}
    left_out = [r for r in measurement.records if starting & set(r.tags) and "warmup" not in r.tags]
    for tag, why in _LEFT_OUT.items():
        num = sum(next(t for t in _LEFT_OUT if t in record.tags) == tag for record in left_out)
        if num:
            missing.append(f"{num} {'step' if num == 1 else 'steps'} {why}: not in the breakdown")
    if breakdown.closure_error_fraction > CLOSURE_LIMIT:
        missing.append(
            f"{100 * breakdown.closure_error_fraction:.1f} % of wall time: phases and wall time disagree"
        )
    if breakdown.device is None and not runs_on_cpu(measurement):
        missing.append(_no_device_time(measurement))
    return missing


def _no_device_time(measurement: Measurement) -> str:
    if any(record.device for record in measurement.records):
        return (
            "when the device idled: its kernels were not seen, and the gaps between them not without "
            "them; so no wait of the host is called lost time"
        )
    return "device time: without it a host wait can not be told from a busy device"


def _of_model(census: Census) -> list[str]:
    missing = []
    if not census.matmul_dtypes:
        missing.append("precision of matrix products: not observed")
    elif not census.fast_dtypes:
        missing.append("faster precisions of this device: none is known")
    if census.compiled is None:
        missing.append("compilation: not observed")
    if census.optimizer is None:
        missing.append("optimizer implementation: not observed")
    return missing


def _of_script(measurement: Measurement, breakdown: Breakdown, census: Census) -> list[str]:
    asked: Mapping[str, str] = _LOOKED_AT
    if not runs_on_cpu(measurement):
        asked = {**_LOOKED_AT, **_ON_AN_ACCELERATOR}
    missing = [words for name, words in asked.items() if name not in census.seen]
    if others := census.other_trainings:
        made = ", ".join(f"{steps:,}" for steps in sorted(others, reverse=True)[:5])
        many = f"{len(others)} other processes" if len(others) > 1 else "1 other process"
        missing.append(
            f"{many} that trained as well, without a rank of their own ({made} steps): one is watched"
        )
    if hides_waiting(measurement):
        missing.append(
            "waiting for the other processes: where it happens inside the pass backward, it is not "
            "told from computing"
        )
    if "operators" in census.seen and not (census.operators and census.profiled_step_s):
        missing.append("the operations of a step: none was seen")
    if why := why_no_own_code(measurement, breakdown):
        missing.append(f"the script's own code between the phases: {why}")
    if census.collections is None:
        missing.append("garbage collection: not watched")
    elif few_full(census.collections) and full_share(measurement, breakdown) >= COLLECTING:
        missing.append(
            "the share of full garbage collections: too few were seen to know how often they come"
        )
    for phase, words in (("checkpoint", "saving"), ("eval", "evaluating")):
        once = any(r.host.get(phase) for r in measurement.records if "warmup" not in r.tags)
        if once and recurring(measurement, phase) is None:
            missing.append(f"the share of {words}: it was seen once, so how often is not known")
    loader = training_loader(census)
    if loader is not None and loader.fetch_s is None:
        missing.append("the time to make a batch: not observed")
    if is_crowded(census):
        missing.append(
            f"what a quiet machine would show: other programs kept {100 * (census.foreign_busy or 0):.0f} % "
            "of the machine's CPUs busy, so times are rough, and waiting for a disk is not told from waiting "
            "for a CPU"
        )
    if census.cpu_busy is None:
        missing.append("how busy the CPUs were: not observed")
    if not runs_on_cpu(measurement):
        missing += _of_accelerator(census)
    return missing


def _of_accelerator(census: Census) -> list[str]:
    missing = []
    if census.device_memory_bytes is None or census.device_allocated_bytes is None:
        missing.append("memory of the device: not observed")
    if census.throttled_fraction is None:
        missing.append("heat and power of the device: no telemetry")
    if (census.num_ranks or 1) > 1:
        missing.append("which process is slower than the others: this is about one of them")
    return missing
