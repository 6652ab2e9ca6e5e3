"""HL307: the model is compiled again and again

What it means. What torch.compile made fits the shapes and values that it saw. When others come, it
compiles again, for seconds; after eight times it gives up and runs that part eagerly.

Evidence. `num_recompiles`: 3 or more. `recompile_fraction`: seconds of the steps in which it compiled
again beyond a usual step, over the wall time after the start (where nearly every step compiles: the
seconds that torch counted, over all steps); reported from 0.05. `reason`: the first that torch gave.
Site: the line most seen in forward while it called something, if for at least half of that share.

Gain at most. `1 / (1 - recompile_fraction)`: in all steps together, of those that were measured. It
falls with time where every shape has been seen at last.

Remedy. Pad to a few fixed lengths, drop the last short batch (`drop_last=True`), or
`torch.compile(dynamic=True)`; numbers that change (a step count, a learning rate) belong into tensors.
To test it: count with `TORCH_LOGS=recompiles`.

What can go wrong. Dynamic shapes compute a little slower than fixed ones. Padding computes more.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import gain_without
from hotloop.judge.model_lines import compiled_line
from hotloop.judge.recompiling import recompiling_share
from hotloop.judge.thresholds import NOTICEABLE, RECOMPILES

CODE = "HL307"
TITLE = "The model is compiled again and again"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    if census is None or (census.num_recompiles or 0) < RECOMPILES:
        return None
    share = recompiling_share(measurement)
    if share < NOTICEABLE:
        return None
    reason = census.recompile_reasons[0] if census.recompile_reasons else None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(share),
        site=compiled_line(census, share / 2),
        evidence={
            "num_recompiles": census.num_recompiles,
            "recompile_fraction": share,
            "reason": reason,
        },
        advice="Keep shapes the same (fixed lengths, drop_last=True) or compile with dynamic=True.",
    )
