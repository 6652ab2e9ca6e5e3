"""HL501: the batch is small for the device

What it means. The device idles between short kernels, and most of its memory is free: a larger batch
would give each kernel more to do for the same number of launches.

Evidence. `idle_fraction`: share of device time without work that no wait of the host explains; from
0.15. `mean_operation_s`: mean kernel, below 20 us. `memory_fraction`: highest memory in use over the
device's; below 0.6.

Gain at most. `1 / (1 - idle_fraction)` in samples per second. This is loose: how the speed grows with
the batch shows only when tried.

Remedy. Double the batch and measure samples per second, until they grow by less than a tenth. To test
it: a few steps at each size, in fresh processes.

No fix. A larger batch is another training: fewer updates, which need another learning rate.

What can go wrong. A larger batch is another training: fewer updates per epoch, another learning rate.
With gradient accumulation the global batch can stay as it is (half the microbatches, twice as large).
The longest batch decides whether memory suffices.
"""

from __future__ import annotations

from hotloop.judge.findings.hl303_launch_bound import idle_inside
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import LAUNCH, ROOM, SHORT_OPERATION_S


def find(run: JudgedRun) -> Found | None:
    census = run.census
    seen = run.operations
    if seen is None or run.on_cpu:
        return None
    if not census.device_memory_bytes or census.device_allocated_bytes is None:
        return None
    memory = census.device_allocated_bytes / census.device_memory_bytes
    idle, mean = idle_inside(run), seen.mean_s()
    if memory >= ROOM or idle < LAUNCH or mean is None or mean >= SHORT_OPERATION_S:
        return None
    return Found(
        share=idle,
        gain_is_loose=True,
        evidence={
            "idle_fraction": idle,
            "mean_operation_s": mean,
            "memory_fraction": memory,
        },
        advice="Try twice the batch; with gradient accumulation, half the microbatches of twice the "
        "size, which is the same training.",
    )
