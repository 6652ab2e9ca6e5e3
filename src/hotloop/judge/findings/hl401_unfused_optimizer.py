"""HL401: the optimizer updates the weights in many small operations

What it means. The update runs as several passes over every tensor. One fused kernel reads and writes
weights, gradients and moments once.

Evidence. `optimizer_fraction`: seconds in the phase `optimizer` (gradient clipping included, where the
loop counts it there) over wall seconds, steady steps only; reported from 0.05. `optimizer`: class and
implementation seen, without `fused`.

Gain at most. `1 / (1 - optimizer_fraction)`: the step without any update, which nothing reaches. About
half of it is usual (minGPT's adder on 2 cores: 10.3 % of the step, gain 7.6 %).

Remedy. `fused_optimizer`: `fused=True` for Adam, AdamW, SGD or Adagrad.

What can go wrong. Sums are taken in another order: losses differ in the last bits. Parameters must be
floating point and on one kind of device. `fused` and `foreach` exclude each other. Optimizers that
subclass torch's and override `step` ignore it.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement

CODE = "HL401"
TITLE = "The optimizer is not fused"
THRESHOLD = 0.05
"""Below this share a free update gains about what two runs differ by anyway."""
FUSABLE = ("Adam", "AdamW", "SGD", "Adagrad")


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    if census is None or census.optimizer is None or "fused" in census.optimizer:
        return None
    if census.optimizer.partition("(")[0] not in FUSABLE:
        return None
    share = breakdown.fractions.get("optimizer", 0.0)
    if not THRESHOLD <= share < 1:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=1 / (1 - share),
        evidence={"optimizer_fraction": share, "optimizer": census.optimizer},
        optimization="fused_optimizer",
        advice="Construct the optimizer with fused=True.",
    )
