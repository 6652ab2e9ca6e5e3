"""Which of the first steps of somebody else's script are still its start.

A script does not say when it has warmed up: the first steps allocate, choose algorithms, compile, fill
queues. They are tagged `warmup`, never deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median, quantiles

from hotloop.core.step import StepRecord
from hotloop.judge.attribute import AFTER_PROFILER, steady, under_way

WINDOW = 5
"""Steps whose median must be like that of later ones: one slow step among them (an evaluation, a
checkpoint) does not move it. No graph may be compiled in them."""

TOLERANCE = 0.10
"""Over the median of the second half; pyperf takes a warm-up for ended within as much."""

LONGEST = 0.5
"""Share of the steps that may be start: what later ones are like is told from the rest."""

COMES_AGAIN = {"epoch", "eval", "checkpoint", "gc", "recompile"}
"""Tags of steps that are slow for a reason that comes again, and so belongs to the training."""

ENOUGH_BEFORE = 20
"""Steps before torch's profiler from which on they can speak for the script alone."""


def tag_warmup(
    records: Sequence[StepRecord], *, frees_memory: bool = False
) -> tuple[StepRecord, ...]:
    """The same records; those before the training is steady carry `warmup`.

    Steady from the first step on from which `WINDOW` steps in a row have no compiling among them and
    a median that is at most 10 % above that of the second half, or no higher than those of a quarter of
    its windows: a machine that is busy now and then is no start. Steps that were tagged stay so. With
    fewer than four windows of steps, or where nothing is steady in the first half, nothing is added:
    what is slow all the time is not a start. Steps after torch's profiler was at work have no say where
    enough lie before it: what it frees changes how memory is given back, and a CPU's steps get faster.
    frees_memory: where they did get faster, they carry `after_profiler`.
    """
    kept = _without_start(records)
    return _tag_after_profiler(kept) if frees_memory else kept


def _without_start(records: Sequence[StepRecord]) -> tuple[StepRecord, ...]:
    number = first_steady(records)
    if not number:
        return tuple(records)
    return tuple(
        replace(record, tags=("warmup", *record.tags))
        if i < number and "warmup" not in record.tags
        else record
        for i, record in enumerate(records)
    )


def first_steady(records: Sequence[StepRecord]) -> int | None:
    """Index of the first record that counts; `None` where that can not be told."""
    tagged = max((i + 1 for i, r in enumerate(records) if "warmup" in r.tags), default=0)
    profiled = next((i for i, r in enumerate(records) if "profiled" in r.tags), len(records))
    if profiled - tagged >= 4 * WINDOW:
        records = records[:profiled]
    if len(records) - tagged < 4 * WINDOW:
        return None
    later = [
        r.wall_s
        for r in records[tagged + (len(records) - tagged) // 2 :]
        if not {"profiled", "compile", "recompile"} & set(r.tags)
    ]
    if not later:
        return None
    limit = (1 + TOLERANCE) * median(later)
    if len(later) >= 2 * WINDOW:
        windows = [median(later[i : i + WINDOW]) for i in range(len(later) - WINDOW + 1)]
        limit = max(limit, quantiles(windows, n=4)[2])
    last = tagged + int((len(records) - tagged) * LONGEST)
    for start in range(tagged, last + 1):
        window = records[start : start + WINDOW]
        if any("compile" in record.tags for record in window):
            continue
        if median([record.wall_s for record in window]) <= limit:
            # The window's median forgives two slow steps; those at its very start are start, too.
            while (
                start < last
                and records[start].wall_s > 2 * limit
                and not COMES_AGAIN & set(records[start].tags)
            ):
                start += 1
            return start
    return None


def _tag_after_profiler(records: tuple[StepRecord, ...]) -> tuple[StepRecord, ...]:
    """Leave out the steps that compute for clearly less time after the profiler than before it.

    By a tenth of a step, in the median, of forward, backward and update: waiting for data less says nothing. As many
    steps right after it are looked at as before it: what becomes faster later does so for another reason. And by more than
    the middle half of the steps before it lies apart: else other programs came and went.
    """
    seen = [i for i, record in enumerate(records) if "profiled" in record.tags]
    if not seen or len(under_way(records[: seen[0]])) < ENOUGH_BEFORE:
        return records
    before = steady(records[: seen[0]])
    after = steady(records[seen[-1] + 1 :])[: len(before)]
    if len(before) < WINDOW or len(after) < WINDOW:
        return records
    saved = median(_computing(before)) - median(_computing(after))
    low, _, high = quantiles(_computing(before), n=4)
    if saved <= max(TOLERANCE * median([record.wall_s for record in after]), high - low):
        return records
    return tuple(
        replace(record, tags=(*record.tags, AFTER_PROFILER)) if i > seen[-1] else record
        for i, record in enumerate(records)
    )


def _computing(records: Sequence[StepRecord]) -> list[float]:
    phases = ("forward", "backward", "optimizer")
    return [sum(record.host.get(phase, 0.0) for phase in phases) for record in records]
