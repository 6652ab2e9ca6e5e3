"""Gradient clipping by global norm, without a host sync, and without a pass of its own.

`builtin` reads all gradients for the norm, then reads and writes them all to scale them. `fused`
reads them once for the norm and hands the factor to the fused optimizer, which divides as it reads
them anyway. Both clip to max_norm / (norm + 1e-6), as `torch.nn.utils.clip_grad_norm_` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization, seen_as


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if config["train.clip_norm"] is None:
        return Choice("builtin", "nothing is clipped")
    if config["optimizer.name"] == "muon":
        return Choice("builtin", "muon takes no factor for its gradients")
    if config["optimizer.fused"] and config["train.precision"] != "fp16":
        return Choice("fused", "the fused optimizer applies the factor as it reads the gradients")
    return Choice("builtin", "needs a fused optimizer without a gradient scaler")


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if value == "fused" and not config["optimizer.fused"]:
        return "it needs `optimizer.fused`"
    if value == "fused" and config["train.precision"] == "fp16":
        return "the gradient scaler of fp16 uses the same slot of the optimizer"
    if value == "fused" and config["optimizer.name"] == "muon":
        return "muon takes no factor for its gradients"
    return None


CLIPPING = Optimization(
    name="clipping",
    summary="The clipping factor applied inside the fused optimizer instead of in a pass of its own.",
    parity_class="reduction_order",
    key="train.clip",
    off="builtin",
    after=("precision", "fused_optimizer"),
    settings=("fused",),
    choose=_choose,
    why_not=_why_not,
    observed=seen_as("clipping"),
    source_form="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # never error_if_nonfinite: it syncs",
    no_live_form="a script's own clipping is not rewritten while it runs",
    conflicts=(
        "fused needs fused_optimizer",
        "fused and the gradient scaler of fp16 use the same slot",
    ),
    risks="None known.",
)
