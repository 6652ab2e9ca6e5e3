"""HL503: memory grows with every step

What it means. The highest memory so far keeps rising while the training does the same work. In the
end it runs out. Usual cause: losses or outputs kept with their graph (`total += loss`, a list of
outputs), or a cache without a limit.

Evidence. `growth_bytes` over `num_steps`, without the first quarter of the steps: 1 GiB and more over
50 steps and more (TraceML's limits), a quarter of it at least in the second half, so that it has not
levelled off. `bytes_per_step`.

Gain at most. 1.0: it costs memory, not time, until the run dies of it.

Remedy. `total += loss.item()` or `.detach()`; clear lists; limit caches. To test it: the same steps
without the suspect line.

No fix. What holds the memory is a variable of the script, and only its author knows what is still needed.

What can go wrong. A data set that fills a cache on its first epoch looks the same until that is full.
"""

from __future__ import annotations

from hotloop.judge.attribute import under_way
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import CREEP_BYTES, CREEP_LATE, CREEP_STEPS


def find(run: JudgedRun) -> Found | None:
    steps = under_way(run.measurement.records, after_profiler=True)
    peaks = [r.peak_bytes for r in steps if r.peak_bytes is not None]
    seen = peaks[len(peaks) // 4 :]
    if len(seen) < CREEP_STEPS:
        return None
    growth, late = seen[-1] - seen[0], seen[-1] - seen[len(seen) // 2]
    if growth < CREEP_BYTES or late < CREEP_LATE * growth:
        return None
    return Found(
        share=0.0,
        evidence={
            "growth_bytes": growth,
            "num_steps": len(seen),
            "bytes_per_step": growth / (len(seen) - 1),
            "highest_bytes": seen[-1],
        },
        advice="Look for losses or outputs that are kept with their graph: `total += loss` needs "
        "`.item()` or `.detach()`.",
    )
