"""HL203: many bytes go to the device

What it means. Copying batches takes a visible part of the step although they are in pinned memory: it
is the bytes that cost, over a link of 16 to 64 GB/s (PCIe 3 to 5, 16 lanes).

Evidence. `copy_fraction`: share of device time in copies, or of the host's exposed wait for them where
that is longer; reported from 0.05. `bytes_per_step`.

Gain at most. `1 / (1 - copy_fraction)`: nothing to copy. Images sent as uint8 instead of float32 save
three quarters of it.

Remedy. Send the smallest type and convert on the device: uint8 images, int32 or int16 ids, no masks
that the device can compute. To test it: the same steps on one batch that is already on the device.

No fix. Whether a smaller type holds every value, and where to convert it, depends on what the numbers mean.

What can go wrong. Normalizing on the device rounds differently in the last bits.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import NOTICEABLE


def find(run: JudgedRun) -> Found | None:
    if run.on_cpu or any(copy.pageable for copy in run.census.copies):
        return None  # HL202: how they are copied comes first
    share = max(min(run.device("memcpy"), 1.0), run.exposed_phase("host_to_device"))
    known = [copy for copy in run.census.copies if copy.num_bytes]
    if share < NOTICEABLE or not known:
        return None
    return Found(
        share=share,
        site=run.site_of(known, "host_to_device"),
        evidence={
            "copy_fraction": share,
            "bytes_per_step": sum(copy.num_bytes or 0 for copy in known)
            / run.breakdown.counted_steps,
        },
        advice="Send smaller types (uint8 images, int32 ids) and convert them on the device.",
    )
