"""HL401: the optimizer is not fused

What it means. The update runs as several passes over every tensor. One fused kernel reads and writes
weights, gradients and moments once.

Evidence. `optimizer_fraction`: seconds in the phase `optimizer` (gradient clipping included, where the
loop counts it there) over wall seconds, steady steps only; reported from 0.05. On an accelerator: the
share of the step that the update's operations took there, or of the host's exposed time in that phase
where that is longer. `optimizer`: class and implementation seen, not fused; a
class that is not torch's own is no finding. Site: where it is constructed; else where it steps.

Gain at most. `1 / (1 - optimizer_fraction)`: the step without any update. On a CPU `1 / (1 - 1.25
optimizer_fraction)`: what its passes over memory push out of the caches is fetched again in other phases
(small models in public scripts gained up to 1.2 times the update's own share). On an accelerator whose
operations were not looked at it is loose.

Remedy. `fused_optimizer`: `fused=True` for Adam, AdamW, SGD or Adagrad; by hand where the script chose
`foreach` or `fused=False`. To test it: the same steps with both, in turns, at least four pairs.

What can go wrong. Sums are taken in another order: losses differ in the last bits. Parameters must be
floating point and on one kind of device. `fused` and `foreach` exclude each other. Optimizers that
subclass torch's and override `step` ignore it.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.operations import is_updating
from hotloop.judge.thresholds import NOTICEABLE

CACHES = 1.25
"""What the update costs the whole step on a CPU, at most, as a multiple of its own time."""
FUSABLE = ("Adam", "AdamW", "SGD", "Adagrad")


def find(run: JudgedRun) -> Found | None:
    census = run.census
    if census.optimizer is None or "(fused)" in census.optimizer:
        return None
    if census.optimizer.partition("(")[0] not in FUSABLE:
        return None
    share, is_loose = _share(run)
    if not NOTICEABLE <= share < 1:
        return None
    chosen = census.optimizer.partition("(")[2]
    by_hand = f"By hand: write fused=True in place of what the script chose ({chosen}, which no trial overrides."
    return Found(
        share=share * (CACHES if run.on_cpu else 1.0),
        gain_is_loose=is_loose,
        site=census.optimizer_site or run.first_line("optimizer"),
        evidence={"optimizer_fraction": share, "optimizer": census.optimizer},
        optimization=None if chosen else "fused_optimizer",
        advice=by_hand if chosen else "Construct the optimizer with fused=True.",
    )


def _share(run: JudgedRun) -> tuple[float, bool]:
    """And whether it only says what can not be exceeded."""
    host = run.host("optimizer")
    if run.on_cpu:
        return host, False
    seen = run.operations
    if seen is None:
        return host, True
    return max(seen.share(is_updating), run.exposed_phase("optimizer")), False
