"""The whole AdamW update in one kernel, instead of a dozen passes over weights and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization, leaving, live_in
from hotloop.optimizations.source_edit import Keywords, SourceEdit


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    return Choice(True, "one pass over weights and state")


def _observed(census: Census, value: Any) -> bool | None:
    return ("fused" in census.optimizer) == value if census.optimizer else None


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    return Keywords("torch.optim", ("Adam", "AdamW", "SGD", "Adagrad"), {"fused": "True"})


FUSED_OPTIMIZER = Optimization(
    name="fused_optimizer",
    summary="The whole update of Adam, AdamW, SGD or Adagrad in one kernel.",
    parity_class="reduction_order",
    key="optimizer.fused",
    off=False,
    settings=(True,),
    argument="fused",
    choose=_choose,
    observed=_observed,
    answers=("HL401",),
    source_form="torch.optim.AdamW(model.parameters(), fused=True)",
    source_edit=_source_edit,
    trainer_arguments=lambda value, applied_to: (
        'optim="adamw_torch_fused"' if set(applied_to) <= {"AdamW"} else None
    ),
    leaves="a script that chose `foreach`, `fused` or `differentiable`; parameters that cannot be fused",
    live_form=live_in(__name__),
    expect=leaving("optimizer_fraction", 0.0, 0.45),
    risks="Refused by torch together with foreach=True, or for parameters that are not floating point.",
)
