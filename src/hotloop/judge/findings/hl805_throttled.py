"""HL805: the device is held back by heat or power

What it means. The GPU lowers its clock because it is too hot or would draw more power than allowed.

Evidence. `throttled_fraction`: share of the telemetry of the steps in which the driver named such a
reason; reported from 0.1. `clock_drop_fraction`: how much lower the clock was then; from 0.15
(gpuprof's limit). `throttled_by`: the reasons.

Gain at most. `1 / (1 - throttled_fraction x clock_drop_fraction x compute_fraction)`: the full clock all
the time, for what the device computes.

Remedy. Only a person can: cooling, the place in the rack, the power limit (`nvidia-smi -q -d
PERFORMANCE,POWER,TEMPERATURE`). To test it: the same steps on another device, or after it has cooled.

No fix. No process cools its device, or may raise its power limit.

What can go wrong. Comparing runs while the clock wanders: pairs measured in turns share the drift.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import CLOCK_DROP, THROTTLED


def find(run: JudgedRun) -> Found | None:
    census = run.census
    if run.on_cpu or run.breakdown.device is None:
        return None
    throttled, drop = census.throttled_fraction, census.clock_drop_fraction
    if throttled is None or drop is None or throttled < THROTTLED or drop < CLOCK_DROP:
        return None
    computing = run.device("compute")
    return Found(
        share=throttled * drop * computing,
        evidence={
            "throttled_fraction": throttled,
            "clock_drop_fraction": drop,
            "throttled_by": ", ".join(census.throttled_by) or None,
            "compute_fraction": computing,
        },
        advice="Look at cooling and power limit: nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE.",
    )
