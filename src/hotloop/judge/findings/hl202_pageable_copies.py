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

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import (
    exposed,
    gain_without,
    runs_on_cpu,
    seconds_of,
    share_of_wall,
    site_of,
)
from hotloop.judge.thresholds import PAGEABLE_COPIES

CODE = "HL202"
TITLE = "Copies to the device stop the host"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    if census is None or runs_on_cpu(measurement):
        return None
    copies = [copy for copy in census.copies if copy.pageable]
    host = breakdown.fractions.get("host_to_device", 0.0) + breakdown.fractions.get(
        "data_wait", 0.0
    )
    measured = min(share_of_wall(breakdown, seconds_of(copies)), host)
    share = exposed(measurement, breakdown, measured) or 0.0
    if share < PAGEABLE_COPIES:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(share),
        site=site_of(copies, census, "host_to_device"),
        evidence={
            "copy_fraction": share,
            "num_copies": sum(copy.num for copy in copies),
            "num_bytes": sum(copy.num_bytes or 0 for copy in copies),
            "pageable": "True",
        },
        optimization="pinned_copies",
        advice="Set pin_memory=True in the DataLoader and copy with .to(device, non_blocking=True).",
    )
