"""HL502: the device's memory is asked for again and again

What it means. The allocator ran out of memory, gave its cache back to the driver and asked again, in
steps that are under way. Each time everything waits. Or it holds twice as much as is used: pieces that
fit nothing.

Evidence. `alloc_retries`: over the counted steps. `reserved_bytes` over `allocated_bytes`, both at
their highest: 2 and more (TraceML's limit), and at least 0.6 of the device's memory. Phases do not
show the time.

Gain at most. `1 / (1 - idle_fraction)`: the device never idles. This is loose: how much of it follows
from memory shows only when tried.

Remedy. `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` in the environment; a batch that is smaller
by one; no `torch.cuda.empty_cache()` in the loop. To test it: the same steps with each, in turns.

No fix. The allocator's setting acts on a GPU alone, where no fix has been run yet; a smaller batch is
another training.

What can go wrong. A smaller batch is another training, unless accumulation makes up for it.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import gain_without, runs_on_cpu
from hotloop.judge.thresholds import RESERVED_TIMES, ROOM

CODE = "HL502"
TITLE = "The device's memory is asked for again and again"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    if census is None or runs_on_cpu(measurement) or breakdown.device is None:
        return None
    used, held = census.device_allocated_bytes, census.device_reserved_bytes
    scattered = (
        bool(used and held and census.device_memory_bytes)
        and held >= RESERVED_TIMES * used  # type: ignore[operator]
        and held >= ROOM * census.device_memory_bytes  # type: ignore[operator]
    )
    if not census.alloc_retries and not scattered:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(breakdown.device.get("idle", 0.0)),
        gain_is_loose=True,
        evidence={
            "alloc_retries": census.alloc_retries,
            "allocated_bytes": used,
            "reserved_bytes": held,
            "memory_bytes": census.device_memory_bytes,
            "idle_fraction": breakdown.device.get("idle", 0.0),
        },
        advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; take torch.cuda.empty_cache() "
        "out of the loop; or make the batch a little smaller.",
    )
