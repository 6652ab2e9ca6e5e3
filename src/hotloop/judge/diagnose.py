"""From one measured process to where its time goes and what could be done about it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median

from hotloop.core.judgement import Bound, Diagnosis, Finding, Steps
from hotloop.core.measurement import Measurement
from hotloop.core.step import WOULD_DO, StepRecord
from hotloop.judge.attribute import AFTER_PROFILER, under_way
from hotloop.judge.coverage import not_examined
from hotloop.judge.findings import FINDINGS, finding
from hotloop.judge.judged_run import JudgedRun, is_installed, judged_run
from hotloop.judge.operations import is_moving, is_updating
from hotloop.judge.ranks import hides_waiting, with_other_ranks
from hotloop.judge.thresholds import HIGH, MODERATE
from hotloop.judge.worth import worth

WASTE: dict[str, Bound] = {
    "data_wait": "input",
    "host_to_device": "copy",
    "grad_sync": "communication",
    "sync": "sync",
    "checkpoint": "checkpoint",
    "eval": "evaluation",
    "logging": "logging",
    "unattributed": "host",
}

NAMED_BY: dict[str, tuple[Bound, str]] = {
    "HL804": ("gc", "collection_fraction"),
    "HL307": ("recompile", "recompile_fraction"),
    "HL107": ("input", "own_fraction"),
    "HL303": ("launch", "launch_fraction"),
}
"""Findings that tell a bound that phases do not show, and where their share is in the evidence."""

OWN = ("HL107", "HL801", "HL804")
"""Findings of what a script itself does between the phases."""

OF_THE_RUN = ("HL806",)
"""Findings about a whole run, and so not loose where it made few steps."""

OF_OPERATIONS = ("HL301", "HL302", "HL304", "HL306")
"""Findings whose gain is bounded by how long operations took. Threads that wait for their turn draw each of them out."""

MOVING = 0.5
"""Share of a step in long operations with hardly any arithmetic from which memory bounds it."""


def diagnose(
    measurement: Measurement,
    *,
    others: Mapping[int, Measurement] | None = None,
    unavailable: Collection[str] = (),
) -> Diagnosis:
    """Breakdown, bound and ranked findings of one process. Raises `ValueError` for damaged records.

    others: the ranks that trained together with it, of which only their own code is judged, and samples are counted.
    unavailable: optimizations that this training has no setting for; what they fix is left out.
    """
    run = judged_run(measurement)
    records = run.measurement.records
    steps = _steps(records, [each.records for each in (others or {}).values()])
    steps = replace(steps, left_out=run.num_left_out, made=run.num_made)
    alone = not others and run.is_foreign and (run.census.num_ranks or 1) > 1
    if alone or (others and run.census.parallel is None):  # all may train on the same batch
        steps = replace(steps, samples_per_s=None)
    if not under_way(records):
        missing = (
            f"everything: no step after the start was recorded; it takes {WOULD_DO} in all, or more"
        )
        return Diagnosis(None, steps, not_examined=(missing,))
    if not run.has_phases:
        return Diagnosis(None, steps, not_examined=("phases: only a step clock was carried",))
    breakdown = run.breakdown
    found = [each for code in FINDINGS if (each := finding(code, run)) is not None]
    found = [each for each in found if each.optimization not in unavailable]
    own = with_other_ranks([_in_own_code(each, run) for each in found], others or {})
    if run.is_foreign and run.is_short:
        own = tuple(f if f.code in OF_THE_RUN else replace(f, gain_is_loose=True) for f in own)
    if any(f.code == "HL803" and "other_programs" in f.evidence for f in own):
        own = tuple(replace(f, gain_is_loose=True) if f.code in OF_OPERATIONS else f for f in own)
    findings = tuple(sorted(own, key=_rank))
    bound = bound_of(
        breakdown.fractions,
        breakdown.device,
        on_cpu=run.on_cpu,
        own_code=any(each.code in OWN and not each.gain_is_loose for each in found),
    )
    if bound in ("compute", "balanced") and hides_waiting(run):
        bound = None
    return Diagnosis(
        bound=_named_bound(bound, run, findings),
        steps=replace(steps, enough=run.enough_steps) if run.is_foreign else steps,
        breakdown=breakdown.fractions,
        device=breakdown.device,
        findings=findings,
        probe_overhead_fraction=breakdown.probe_overhead_fraction,
        not_examined=tuple(not_examined(run)),
        worth=worth(run, findings) if run.is_foreign else None,
    )


def bound_of(
    host: Mapping[str, float],
    device: Mapping[str, float] | None,
    *,
    on_cpu: bool,
    own_code: bool = True,
) -> Bound | None:
    """What the step is limited by: a wait of 20 % and more, else what takes most of it.

    A wait is time in which nothing is computed, so a fifth of the step is named although forward and
    backward take more. Updating is work like computing: it is named where it takes more. Less than that
    is left to the findings. A host wait is exposed only while the device idles, so on an accelerator each
    share is capped by the idle share of the device. `None` on an accelerator without device clocks: there
    the host waits in `sync` for useful computing, and host time alone would call that a fault.

    own_code: whether code of the script's own was seen between the phases. Where it was not, what is there on
    a CPU is computing too (losses, inputs that are drawn, a library's steps): named only where it is the most.
    """
    idle = 1.0
    if device is not None:
        idle = device.get("idle", 0.0)
    elif not on_cpu:
        return None
    exposed = {phase: min(host.get(phase, 0.0), idle) for phase in WASTE}
    worst = max(exposed, key=lambda phase: exposed[phase])
    if device is not None:
        if exposed[worst] >= HIGH:
            return WASTE[worst]
        if device.get("communication", 0.0) >= HIGH:
            return "communication"
        if idle >= HIGH:
            return "host"  # the device waits for a host that waits for nothing
        return "compute" if device.get("compute", 0.0) >= 0.5 else "balanced"
    computing = host.get("forward", 0.0) + host.get("backward", 0.0)
    updating = host.get("optimizer", 0.0)
    if not own_code and exposed["unattributed"] < max(computing, updating):
        del exposed["unattributed"]
        worst = max(exposed, key=lambda phase: exposed[phase])
    if exposed[worst] >= HIGH and not updating > max(exposed[worst], computing):
        return WASTE[worst]
    most = max(computing, updating)
    if most < max(HIGH, math.fsum(exposed.values())):
        return "balanced"
    return "optimizer" if updating > computing else "compute"


def _in_own_code(finding: Finding, run: JudgedRun) -> Finding:
    """The finding at a line that its user can change, where one is known: not at one of installed code."""
    if finding.site is None or not is_installed(finding.site):
        return finding
    sites = [value for key, value in finding.evidence.items() if key.endswith("_site")]
    if finding.code.startswith("HL1") and run.loader is not None:
        sites.append(run.loader.site)
    own = (site for site in sites if isinstance(site, str) and not is_installed(site))
    return replace(finding, site=next(own, finding.site))


def _named_bound(bound: Bound | None, run: JudgedRun, findings: Sequence[Finding]) -> Bound | None:
    """The bound by phases, unless a finding explains more, or explains what is in `unattributed`."""
    if bound is None:
        return None
    largest = max(map(run.exposed_phase, WASTE))
    needed = {"host": max(MODERATE, largest / 2)}
    name, share = _largest_named(findings)
    if name is not None and share >= needed.get(bound, max(HIGH, largest)):
        return name
    seen = run.operations
    if bound != "compute" or seen is None:
        return bound
    moving = seen.share(lambda use: is_moving(use) and not is_updating(use))
    return "memory_bandwidth" if moving >= MOVING else bound


def _largest_named(findings: Sequence[Finding]) -> tuple[Bound | None, float]:
    """The bound that the findings of `NAMED_BY` tell, and its share."""
    best: tuple[Bound | None, float] = (None, 0.0)
    for each in findings:
        if each.code in NAMED_BY:
            name, key = NAMED_BY[each.code]
            share = each.evidence.get(key)
            if isinstance(share, float) and share > best[1]:
                best = (name, share)
    return best


def _rank(finding: Finding) -> tuple[bool, bool, float, str]:
    """Highest gain first; those whose bound is loose after those whose bound means something, but for threads that wait for each other.

    Before all of them what is there for debugging alone: like those threads it slows down what the others speak of.
    """
    debugs = finding.code == "HL807"
    is_last = finding.gain_is_loose and finding.code != "HL803"
    return not debugs, is_last, -finding.gain_at_most, finding.code


def _steps(records: tuple[StepRecord, ...], others: Sequence[tuple[StepRecord, ...]] = ()) -> Steps:
    # Under our profiler a step takes as long as the profiler does.
    counted = [
        record
        for record in records
        if not {"warmup", "profiled", AFTER_PROFILER} & set(record.tags)
    ]
    for record in counted:
        if not (math.isfinite(record.wall_s) and record.wall_s > 0):
            raise ValueError(f"step {record.step} took {record.wall_s} s")
    seconds = [_seconds(record) for record in counted]
    wall = math.fsum(seconds)
    tokens = [record.tokens for record in counted if record.tokens is not None]
    samples = [record.samples for record in counted if record.samples is not None]
    numbers = {record.step for record in counted}
    theirs = sum(r.samples or 0 for each in others for r in each if r.step in numbers)
    return Steps(
        measured=len(counted),
        warmup=sum("warmup" in record.tags for record in records),
        median_s=median(seconds) if counted else None,
        tokens_per_s=sum(tokens) / wall if counted and len(tokens) == len(counted) else None,
        samples_per_s=(
            (sum(samples) + theirs) / wall
            if counted and len(samples) == len(counted) and any(samples)  # else it took them before
            else None
        ),
    )


def _seconds(record: StepRecord) -> float:
    """By the clock of its device where that is known: a host that runs ahead comes to the end of a step before it has been made."""
    return math.fsum((record.device or {}).values()) or record.wall_s
