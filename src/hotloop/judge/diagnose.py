"""From one measured process to where its time goes and what could be done about it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hotloop.core.judgement import Bound, Breakdown, Diagnosis, Finding, Steps
from hotloop.core.measurement import Measurement
from hotloop.core.step import StepRecord
from hotloop.judge.attribute import STARTING_UP, attribute, attribute_device, under_way
from hotloop.judge.findings import FINDINGS

NOTICEABLE, MODERATE, HIGH = 0.05, 0.10, 0.20
"""Shares of wall time: findings start at the first. Waste (waiting, copying, saving) names the bound
from the second, work (the optimizer) from the third. The steps 5/10/20 % are those of TraceML and of
XProf's input analyzer."""

WASTE: dict[str, Bound] = {
    "data_wait": "input",
    "host_to_device": "copy",
    "grad_sync": "communication",
    "sync": "sync",
    "checkpoint": "checkpoint",
    "eval": "evaluation",
    "logging": "logging",
}

CLOSURE_LIMIT = 0.005
"""Phases that miss more of wall time than this are reported as such."""


def diagnose(measurement: Measurement) -> Diagnosis:
    """Breakdown, bound and ranked findings of one process. Raises `ValueError` for damaged records."""
    records = measurement.records
    steps = _steps(records)
    kept = under_way(records)
    missing: list[str] = []
    if not kept:
        missing.append("everything: no step after the start was recorded")
        return Diagnosis(None, steps, not_examined=tuple(missing))
    if not any(record.host for record in kept):
        missing.append("phases: only a step clock was carried")
        return Diagnosis(None, steps, not_examined=tuple(missing))
    census = measurement.census
    breakdown = attribute(records, clock_read_s=census.clock_read_s if census else None)
    device = attribute_device(records)
    missing += _not_examined(measurement, breakdown, device)
    found = [module.find(measurement, breakdown) for module in FINDINGS.values()]
    return Diagnosis(
        bound=bound_of(breakdown.fractions, device, on_cpu=runs_on_cpu(measurement)),
        steps=steps,
        breakdown=breakdown.fractions,
        device=device,
        findings=tuple(sorted((f for f in found if f is not None), key=_rank)),
        probe_overhead_fraction=breakdown.probe_overhead_fraction,
        not_examined=tuple(missing),
    )


def bound_of(
    host: Mapping[str, float], device: Mapping[str, float] | None, *, on_cpu: bool
) -> Bound | None:
    """What most limits the step, by exposed time.

    A host wait is exposed only while the device idles, so on an accelerator each share is capped by
    the idle share of the device. `None` on an accelerator without device clocks: there the host
    waits in `sync` for useful computing, and host time alone would call that a fault.
    """
    idle = 1.0
    if device is not None:
        idle = device.get("idle", 0.0)
    elif not on_cpu:
        return None
    exposed = {phase: min(host.get(phase, 0.0), idle) for phase in WASTE}
    worst = max(exposed, key=lambda phase: exposed[phase])
    if exposed[worst] >= MODERATE:
        return WASTE[worst]
    if device is not None:
        if device.get("communication", 0.0) >= HIGH:
            return "communication"
        if idle >= HIGH:
            return "host"  # the device waits for a host that waits for nothing
        return "compute" if device.get("compute", 0.0) >= 1 - HIGH else "balanced"
    if host.get("optimizer", 0.0) >= HIGH:
        return "optimizer"
    computing = host.get("forward", 0.0) + host.get("backward", 0.0)
    return "compute" if computing >= 1 - HIGH else "balanced"


def _rank(finding: Finding) -> tuple[bool, float, str]:
    """Highest gain first; those whose bound is loose after those whose bound means something."""
    return finding.gain_is_loose, -finding.gain_at_most, finding.code


def _steps(records: tuple[StepRecord, ...]) -> Steps:
    counted = [record for record in records if "warmup" not in record.tags]
    for record in counted:
        if not (math.isfinite(record.wall_s) and record.wall_s > 0):
            raise ValueError(f"step {record.step} took {record.wall_s} s")
    wall = math.fsum(record.wall_s for record in counted)
    tokens = [record.tokens for record in counted if record.tokens is not None]
    samples = [record.samples for record in counted if record.samples is not None]
    complete = bool(counted)
    return Steps(
        measured=len(counted),
        warmup=len(records) - len(counted),
        median_s=float(np.median([record.wall_s for record in counted])) if counted else None,
        tokens_per_s=sum(tokens) / wall if complete and len(tokens) == len(counted) else None,
        samples_per_s=sum(samples) / wall if complete and len(samples) == len(counted) else None,
    )


def runs_on_cpu(measurement: Measurement) -> bool:
    """Whether the model ran on the CPU, as seen; without a census, as its records look."""
    census = measurement.census
    if census is not None and census.device is not None:
        return census.device.startswith("cpu")
    return measurement.environment.device == measurement.environment.cpu_model


def _not_examined(
    measurement: Measurement, breakdown: Breakdown, device: Mapping[str, float] | None
) -> list[str]:
    missing = []
    records = measurement.records
    starting = STARTING_UP - {"warmup"}
    left_out = [r for r in records if starting & set(r.tags) and "warmup" not in r.tags]
    if left_out:
        tags = sorted({tag for record in left_out for tag in record.tags} & starting)
        steps = "step" if len(left_out) == 1 else "steps"
        missing.append(
            f"{len(left_out)} counted {steps} with {', '.join(tags)}: not in the breakdown"
        )
    if breakdown.closure_error_fraction > CLOSURE_LIMIT:
        missing.append(
            f"{breakdown.closure_error_fraction:.1%} of wall time: phases and wall time disagree"
        )
    if device is None and not runs_on_cpu(measurement):
        missing.append("device time: without it a host wait can not be told from a busy device")
    census = measurement.census
    if census is None:
        missing.append("precision, compilation and optimizer: no census was taken")
        return missing
    if not census.matmul_dtypes:
        missing.append("precision of matrix products: not observed")
    elif not census.fast_dtypes:
        missing.append("faster precisions of this device: none is known")
    if census.compiled is None:
        missing.append("compilation: not observed")
    if census.optimizer is None:
        missing.append("optimizer implementation: not observed")
    return missing
