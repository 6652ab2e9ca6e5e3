"""HL801: the script's own code between the phases

What it means. The training thread runs Python outside of everything that a training step consists of:
metrics, bookkeeping, sleeping, something that was left in. The model computes nothing meanwhile.

Evidence. `unattributed_fraction`: wall time outside every phase. `outside_fraction`: the exposed part of it,
garbage collection and the probe left out. `own_fraction`: of that, by samples, what is the script's own,
from five samples and 0.05 on: not torch's code (losses, `zero_grad`, clipping), nor lines that call the
model as well. `line_fraction`: in one line; `function`, and `inside`: what it was calling. Not where no
module is called: the model is among the script's own lines then.

Gain at most. `1 / (1 - outside_fraction)`: nothing is done outside of the phases; how much of it is the
script's own only samples tell.

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
from hotloop.judge.own_code import OwnCode, own_code

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
        gain_at_most=gain_without(found.most),
        site=found.site,
        evidence={
            "unattributed_fraction": breakdown.fractions.get("unattributed", 0.0),
            "outside_fraction": found.most,
            "own_fraction": found.share,
            "line_fraction": found.line_share,
            "function": line.function,
            "inside": line.inside,
        },
        advice=_advice(found),
    )


def _advice(found: OwnCode) -> str:
    if not found.is_spread:
        where = found.site or f"`{found.line.function}`"
        return f"Look at {where}: do that less often, on the device, or not in the loop."
    largest = found.line_share / found.share
    where = (
        f"the largest, {found.site}, holds {largest:.0%} of it" if found.site else "none stands out"
    )
    return f"It is spread over {found.num_lines} lines; {where}. A function that holds many of them is the one to mend."
