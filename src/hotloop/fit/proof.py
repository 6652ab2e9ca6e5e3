"""A training of the recommended microbatch, for many steps, within the memory that was asked for."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from hotloop.core.errors import CommandFailed
from hotloop.core.memory_use import Fit, Proof, is_for_memory
from hotloop.fit.processes import (
    ACCUMULATED,
    MICROBATCH,
    Processes,
    peak_bytes,
    tokens_per_s,
)
from hotloop.fit.program import splits
from hotloop.trial.memory_group import MemoryGroup, memory_group

MOST_PROCESSES = 8
"""Real ones, of a whole call."""
AFTERWARDS = "its highest resident memory, looked at after it ended: no memory control group can be made here"
ALLOCATED = "its highest allocated memory of the GPU, looked at after it ended"
TIMED = 3
TIMED_STEPS = 6
NEAR = 0.02
"""Below the best tokens per second: what is as fast as that."""


def proven(processes: Processes, fit: Fit, *, steps: int) -> Fit:
    """With a proof: microbatches that are predicted to fit timed, and the smallest of the fastest soaked.

    A global batch stays what it is. Where the training does not survive, the next smaller microbatch is soaked. Raises what
    the processes raise. Where no microbatch is predicted to fit, those with the settings that do, the cheapest first.
    """
    fitting = [
        n for n in splits(fit.microbatch, fit.grad_accum_steps) if n <= fit.largest_microbatch
    ]
    if fitting or not fit.ways:
        return _proven(processes, fit, steps, fitting)
    given, proof = processes.settings, None
    for way in fit.ways:
        processes.settings = given.with_words(way.settings)
        size = processes.settings.config.train.microbatch
        proof = _proven(processes, fit, steps, [size]).proof
        assert proof is not None
        beside = [
            each for each in way.settings if each.split("=")[0] not in (MICROBATCH, ACCUMULATED)
        ]
        proof = replace(proof, settings=tuple(beside))
        if proof.survived or processes.num_real >= MOST_PROCESSES:
            break
    processes.settings = given
    return replace(fit, proof=proof)


def _proven(processes: Processes, fit: Fit, steps: int, fitting: list[int]) -> Fit:
    """fitting: the microbatches that are predicted to fit, the largest first."""
    whole = fit.microbatch * fit.grad_accum_steps
    on_cpu = processes.machine.device_type == "cpu"
    with memory_group(fit.limit_bytes) if on_cpu else nullcontext() as group:
        rates: dict[int, float | None] = {}
        for size in _spread(fitting):
            rates[size] = _rate(processes, size, whole, group, fit.limit_bytes)
        best = max((rate for rate in rates.values() if rate is not None), default=0.0)
        fast = [n for n, rate in rates.items() if rate is not None and rate >= best * (1 - NEAR)]
        limited_by = AFTERWARDS if on_cpu else ALLOCATED
        if group is not None:
            limited_by = f"a memory control group ({group.path})"
        first = min(fast, default=min(rates, default=1) - 1)
        soaked = [n for n in fitting if n <= first]
        proof = Proof(first, 0, steps, limited_by, False, None, rates)
        for size in soaked:
            if processes.num_real >= MOST_PROCESSES:
                break
            peak = _soak(processes, size, whole, steps, group)
            survived = peak is not None and (group is not None or peak <= fit.limit_bytes)
            proof = Proof(size, whole // size, steps, limited_by, survived, peak, rates)
            if survived:
                break
    proof = replace(proof, num_processes=processes.num_real)
    return replace(fit, proof=proof, measured=dict(processes.peaks))


def _spread(fitting: list[int]) -> list[int]:
    """The largest, and of the smaller ones those near a half and a quarter of it."""
    chosen = fitting[:1]
    for each in fitting:
        if len(chosen) < TIMED and each <= chosen[-1] / 2:
            chosen.append(each)
    return chosen


def _rate(
    processes: Processes, size: int, whole: int, group: MemoryGroup | None, limit_bytes: int
) -> float | None:
    changes = {MICROBATCH: size, ACCUMULATED: whole // size}
    try:
        measured = processes.run(changes, steps=TIMED_STEPS, group=group)
    except CommandFailed as error:
        if not is_for_memory(error):
            raise
        return None
    is_within = group is not None or peak_bytes(measured) <= limit_bytes
    return tokens_per_s(measured) if is_within else None


def _soak(
    processes: Processes, size: int, whole: int, steps: int, group: MemoryGroup | None
) -> int | None:
    """The peak of a training with an evaluation and saves; `None` where it was ended for its memory."""
    config = processes.settings.config
    half = max(steps // 2, 1)
    changes: dict[str, Any] = {
        MICROBATCH: size,
        ACCUMULATED: whole // size,
        "train.steps": steps,
        "schedule.warmup_steps": min(config.schedule.warmup_steps, half),
        "eval.every_steps": half,
        "checkpoint.every_steps": max(half // 2, 1),
    }
    try:
        return peak_bytes(processes.run(changes, steps=steps, whole=True, group=group))
    except CommandFailed as error:
        if not is_for_memory(error):
            raise
        return None
