"""HL401: the optimizer updates the weights in many small operations

What it means. The update runs as several passes over every tensor. One fused kernel reads and writes
weights, gradients and moments once.

Evidence. `optimizer_fraction`: seconds in the phase `optimizer` (gradient clipping included, where the
loop counts it there) over wall seconds, steady steps only; reported from 0.05. On an accelerator: the
share of the step that the update's operations took there, or of the host's exposed time in that phase
where that is longer. `optimizer`: class and implementation seen, without `fused`; a
class that is not torch's own is no finding. Site: where it is constructed; else where it steps.

Gain at most. `1 / (1 - optimizer_fraction)`: the step without any update. On a CPU `1 / (1 - 1.25
optimizer_fraction)`: what its passes over memory push out of the caches is fetched again in other phases
(small models in public scripts gained up to 1.2 times the update's own share). On an accelerator whose
operations were not looked at it is loose.

Remedy. `fused_optimizer`: `fused=True` for Adam, AdamW, SGD or Adagrad. To test it: the same steps with
both, in turns, at least four pairs.

What can go wrong. Sums are taken in another order: losses differ in the last bits. Parameters must be
floating point and on one kind of device. `fused` and `foreach` exclude each other. Optimizers that
subclass torch's and override `step` ignore it.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import exposed_phase, gain_without, lines_of, runs_on_cpu
from hotloop.judge.operations import is_updating, operations
from hotloop.judge.thresholds import NOTICEABLE

CODE = "HL401"
TITLE = "The optimizer is not fused"
CACHES = 1.25
"""What the update costs the whole step on a CPU, at most, as a multiple of its own time."""
FUSABLE = ("Adam", "AdamW", "SGD", "Adagrad")


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    if census is None or census.optimizer is None or "fused" in census.optimizer:
        return None
    if census.optimizer.partition("(")[0] not in FUSABLE:
        return None
    share, is_loose = _share(measurement, breakdown)
    if not NOTICEABLE <= share < 1:
        return None
    lines = lines_of(census, "optimizer")
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(share * (CACHES if runs_on_cpu(measurement) else 1.0)),
        gain_is_loose=is_loose,
        site=census.optimizer_site or (lines[0].site if lines else None),
        evidence={"optimizer_fraction": share, "optimizer": census.optimizer},
        optimization="fused_optimizer",
        advice="Construct the optimizer with fused=True.",
    )


def _share(measurement: Measurement, breakdown: Breakdown) -> tuple[float, bool]:
    """And whether it only says what can not be exceeded."""
    host = breakdown.fractions.get("optimizer", 0.0)
    if runs_on_cpu(measurement):
        return host, False
    seen = operations(measurement)
    if seen is None:
        return host, True
    return max(seen.share(is_updating), exposed_phase(measurement, breakdown, "optimizer")), False
