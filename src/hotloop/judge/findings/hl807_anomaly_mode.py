"""HL807: autograd looks for anomalies

What it means. `torch.autograd.set_detect_anomaly(True)` or `detect_anomaly()` is on, which is meant for
debugging: for every operation of the forward pass Python's stack is written down, and every gradient is
searched for NaN, which on a GPU waits for the device.

Evidence. `checks_per_step`: gradients that were searched, seen by torch's profiler; reported from one
on. `forward_backward_fraction`: share of the time in forward and backward. Not seen with
`check_nan=False`, which writes down the stacks alone.

Gain at most. `1 / (1 - forward_backward_fraction)`, which is loose: no breakdown of a step tells what of
forward and backward goes into stacks and checks. On a CPU 1.2 was measured with layers of 1024, 2.9 with 64.

Remedy. `anomaly_mode`: turn it off, and on again when a NaN shows. To test it: the same steps with and
without, in turns.

What can go wrong. A gradient that becomes NaN no longer ends the training: look at the loss.
"""

from __future__ import annotations

import math

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import NOTICEABLE

CHECK = "aten::_is_any_true"
"""What autograd calls on `isnan` of every gradient, and nothing else in torch."""


def find(run: JudgedRun) -> Found | None:
    checks = math.fsum(x.num for x in run.census.operators if x.name == CHECK)
    share = run.host("forward", "backward")
    if checks < 1 or share < NOTICEABLE:
        return None
    return Found(
        share=share,
        gain_is_loose=True,
        evidence={"checks_per_step": checks, "forward_backward_fraction": share},
        optimization="anomaly_mode",
        advice="Turn torch.autograd's anomaly detection off: it is for debugging.",
    )
