"""HL801: the script's own code between the phases

What it means. The training thread runs Python outside of everything that a training step consists of:
metrics, bookkeeping, sleeping, something that was left in. The model computes nothing meanwhile.

Evidence. `unattributed_fraction`: wall time outside every phase. `own_fraction`: the exposed part of it
in such code, garbage collection left out; reported from 0.05. `line_fraction`: the part of
that in one line, by samples; `function`, and `inside`: what it was calling. Left out is what is not the
script's own: torch's code (losses, `zero_grad`), the probe's, and lines that call the model as well.

Gain at most. `1 / (1 - own_fraction)`: that code costs nothing.

Remedy. Look at the line. Do it every hundred steps, on the device, in a thread, or not at all. To test
it: the same steps without it.

What can go wrong. A loss that the loop computes itself, in single operations on tensors, is computing
and stays; it counts here where it can not be told apart. Code that changes what is learned (schedules,
sampling) has to stay where it is.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import gain_without
from hotloop.judge.own_code import own_code

CODE = "HL801"
TITLE = "The script's own code takes time between the phases"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    found = own_code(measurement, breakdown)
    if found is None or found.prepares_data:
        return None
    line = found.line
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(found.share),
        site=line.site,
        evidence={
            "unattributed_fraction": breakdown.fractions.get("unattributed", 0.0),
            "own_fraction": found.share,
            "line_fraction": found.line_share,
            "function": line.function,
            "inside": line.inside,
        },
        advice=f"Look at {line.site}: do that less often, on the device, or not in the loop.",
    )
