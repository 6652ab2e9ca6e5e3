"""HL307: the model is compiled again and again

What it means. What torch.compile made fits the shapes and values that it saw. When others come, it
compiles again, for seconds; after eight times it gives up and runs that part eagerly.

Evidence. `num_recompiles`: 3 or more. `recompile_fraction`: seconds of the steps in which it compiled
again beyond a usual step, over the wall time after the start (where nearly every step compiles: the
seconds that torch counted, over all steps); reported from 0.05. `reason`: the first that torch gave.
Site: the line most seen in forward while it called something, if for at least half of that share.

Gain at most. `1 / (1 - recompile_fraction)`: in all steps together, of those that were measured. It
falls with time where every shape has been seen at last.

Remedy. Pad to a few fixed lengths, drop the last short batch (`drop_last=True`), or
`torch.compile(dynamic=True)`; numbers that change (a step count, a learning rate) belong into tensors.
To test it: count with `TORCH_LOGS=recompiles`.

No fix. Each remedy makes other batches, or graphs that suit no shape best: which of them, its author
chooses.

What can go wrong. Dynamic shapes compute a little slower than fixed ones. Padding computes more.
"""

from __future__ import annotations

import math
from statistics import median

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.own_code import compiled_line
from hotloop.judge.thresholds import NOTICEABLE, RECOMPILES

MIN_OTHERS = 5
"""Steps without compiling that must be there to tell what a usual one takes."""


def find(run: JudgedRun) -> Found | None:
    census = run.census
    if (census.num_recompiles or 0) < RECOMPILES:
        return None
    share = recompile_share(run)
    if share < NOTICEABLE:
        return None
    reason = census.recompile_reasons[0] if census.recompile_reasons else None
    return Found(
        share=share,
        site=compiled_line(run.lines("forward"), share / 2),
        evidence={
            "num_recompiles": census.num_recompiles,
            "recompile_fraction": share,
            "reason": reason,
        },
        advice="Keep shapes the same (fixed lengths, drop_last=True) or compile with dynamic=True.",
    )


def recompile_share(run: JudgedRun) -> float:
    """The share of the wall time after the warm-up that steps with a recompile took beyond a usual step.

    Not over the steps under way alone: a step in which something was compiled for the first time as
    well carries `compile`, and is not among them. Where nearly every step compiled, no step shows
    what a usual one takes: then torch's own count of its seconds, over all steps since the start.
    """
    records = run.measurement.records
    steps = [r for r in records if not {"warmup", "resumed", "profiled"} & set(r.tags)]
    again = [record.wall_s for record in steps if "recompile" in record.tags]
    others = [r.wall_s for r in steps if not {"recompile", "compile"} & set(r.tags)]
    wall = math.fsum(record.wall_s for record in steps)
    if not again or wall <= 0:
        return 0.0
    if len(others) < MIN_OTHERS:
        return _by_compile_time(run)
    usual = median(others)
    return math.fsum(max(took - usual, 0.0) for took in again) / wall


def _by_compile_time(run: JudgedRun) -> float:
    census = run.census
    if census.compile_s is None or not census.num_recompiles:
        return 0.0
    records = run.measurement.records
    wall = math.fsum(record.wall_s + (record.left_out_s or 0.0) for record in records)
    again = census.num_recompiles / max(census.num_graphs or 0, census.num_recompiles)
    return min(census.compile_s / wall, 1.0) * again if wall > 0 else 0.0
