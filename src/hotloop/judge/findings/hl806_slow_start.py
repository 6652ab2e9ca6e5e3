"""HL806: the start takes a large part of the run

What it means. Importing, building, downloading and reading takes so long before the first step that it
is a visible part of the whole run.

Evidence. `start_s`: seconds from the start of the process to its first step; a minute and more.
`start_fraction`: over the whole run, where it ended by itself or says how many steps it plans; reported
from 0.1. (SageMaker warns from 20 minutes.)

Gain at most. `1 / (1 - start_fraction)`: steps from the first moment on, over the whole run.

Remedy. Prepare data once and store it; read lazily; keep models in a local cache; compile caches
(`TORCHINDUCTOR_FX_GRAPH_CACHE`). To see where it goes: `python -X importtime`.

No fix. Trials compare steps. What of the start may be stored for the next run only its author knows.

What can go wrong. Stored data gets old: keep a version in its name.
"""

from __future__ import annotations

import math

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import SLOW_START, SLOW_START_S


def find(run: JudgedRun) -> Found | None:
    census = run.census
    if not run.is_foreign or census.start_s is None or census.start_s < SLOW_START_S:
        return None
    if census.planned_steps is not None:
        stepping = census.planned_steps * run.breakdown.wall_s / run.breakdown.num_steps
    elif run.measurement.returncode == 0:
        records = run.measurement.records
        stepping = math.fsum(record.wall_s + (record.left_out_s or 0.0) for record in records)
    else:
        return None
    share = census.start_s / (census.start_s + stepping)
    if not SLOW_START <= share < 1:
        return None
    return Found(
        share=share,
        evidence={"start_s": census.start_s, "start_fraction": share},
        advice="Run once with `python -X importtime`, and prepare and store once what is built at "
        "every start.",
    )
