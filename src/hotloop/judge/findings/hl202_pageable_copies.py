"""HL202: copies to the device stop the host

What it means. Batches are copied from ordinary memory. The driver first copies them into pinned memory
of its own, and the host waits until that is done; nothing else is started meanwhile.

Evidence. `copy_fraction`: seconds in such copies over wall time, at most the share in which the device
idled; reported from 0.02. `num_bytes`: copied over the counted steps. `pageable`: yes.

Gain at most. `1 / (1 - copy_fraction)`: the copies cost the host nothing.

Remedy. `pin_memory` in the DataLoader (with at least one worker) and `non_blocking`:
`batch.to(device, non_blocking=True)`. To test it: the same steps with both, in turns.

What can go wrong. A pinned buffer that is filled again while its copy is under way changes the data:
leave buffers alone that you copied with `non_blocking=True`. From the device to the host it must not be
used without a synchronization. Pinned memory is taken from the machine's.
"""

from __future__ import annotations

import math

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import PAGEABLE_COPIES


def find(run: JudgedRun) -> Found | None:
    if run.on_cpu:
        return None
    copies = [copy for copy in run.census.copies if copy.pageable]
    measured = run.share_of_wall(math.fsum(copy.seconds for copy in copies))
    share = run.exposed(min(measured, run.host("host_to_device", "data_wait")))
    if share < PAGEABLE_COPIES:
        return None
    return Found(
        share=share,
        site=run.site_of(copies, "host_to_device"),
        evidence={
            "copy_fraction": share,
            "num_copies": sum(copy.num for copy in copies),
            "num_bytes": sum(copy.num_bytes or 0 for copy in copies),
            "pageable": "True",
        },
        optimization="pinned_copies",
        advice="Set pin_memory=True in the DataLoader and copy with .to(device, non_blocking=True).",
    )
