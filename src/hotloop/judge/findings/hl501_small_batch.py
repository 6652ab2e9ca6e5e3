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

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import exposed_phase, gain_without, runs_on_cpu
from hotloop.judge.findings.hl303_launch_bound import OUTSIDE
from hotloop.judge.operations import operations
from hotloop.judge.thresholds import LAUNCH, ROOM, SHORT_OPERATION_S

CODE = "HL501"
TITLE = "The batch is small for the device"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    seen = operations(measurement)
    if census is None or seen is None or runs_on_cpu(measurement) or breakdown.device is None:
        return None
    if not census.device_memory_bytes or census.device_allocated_bytes is None:
        return None
    memory = census.device_allocated_bytes / census.device_memory_bytes
    waits = sum(exposed_phase(measurement, breakdown, phase) for phase in OUTSIDE)
    idle = breakdown.device.get("idle", 0.0) - waits
    mean = seen.mean_s()
    if memory >= ROOM or idle < LAUNCH or mean is None or mean >= SHORT_OPERATION_S:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(idle),
        gain_is_loose=True,
        evidence={
            "idle_fraction": idle,
            "mean_operation_s": mean,
            "memory_fraction": memory,
        },
        advice="Try twice the batch; with gradient accumulation, half the microbatches of twice the "
        "size, which is the same training.",
    )
