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

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import RESERVED_TIMES, ROOM


def find(run: JudgedRun) -> Found | None:
    census = run.census
    if run.on_cpu or run.breakdown.device is None:
        return None
    used, held = census.device_allocated_bytes, census.device_reserved_bytes
    whole = census.device_memory_bytes
    scattered = used and held and whole and held >= max(RESERVED_TIMES * used, ROOM * whole)
    if not census.alloc_retries and not scattered:
        return None
    return Found(
        share=run.device("idle"),
        gain_is_loose=True,
        evidence={
            "alloc_retries": census.alloc_retries,
            "allocated_bytes": used,
            "reserved_bytes": held,
            "memory_bytes": whole,
            "idle_fraction": run.device("idle"),
        },
        advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; take torch.cuda.empty_cache() "
        "out of the loop; or make the batch a little smaller.",
    )
