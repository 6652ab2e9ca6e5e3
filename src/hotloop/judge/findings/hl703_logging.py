"""HL703: logging takes time in the loop

What it means. Printing, progress bars and loggers write from the training thread, and the step waits.

Evidence. `logging_fraction`: exposed seconds of it over wall time (on an accelerator at most the share
in which it idled); reported from 0.01. `calls_per_step`; `what`: the costliest.

Gain at most. `1 / (1 - logging_fraction)`: no logging. Every `k`-th step only: `1 - 1/k` of that.

Remedy. `log_interval`: write every ten or hundred steps; histograms and images rarer still; collect
values on the device and read them together. To test it: the same steps without;
`fewer_logs` does that for a moment and is never kept.

No fix. Which lines are needed is the author's choice. `fewer_logs` shows what they cost.

What can go wrong. Curves have fewer points.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import costliest, exposed_phase, gain_without, is_foreign, site_of
from hotloop.judge.thresholds import LOGGING

CODE = "HL703"
TITLE = "Logging takes time in the loop"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    share = exposed_phase(measurement, breakdown, "logging")
    if census is None or share < LOGGING or not is_foreign(census):
        return None
    call = costliest(census.logs)
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(share),
        site=site_of(census.logs, census, "logging"),
        evidence={
            "logging_fraction": share,
            "calls_per_step": sum(log.num for log in census.logs) / breakdown.counted_steps,
            "what": call.what if call is not None else None,
        },
        advice="Write every ten or hundred steps only.",
    )
