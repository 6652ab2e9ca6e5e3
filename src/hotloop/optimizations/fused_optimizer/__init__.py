"""The whole AdamW update in one kernel, instead of a dozen passes over weights and state."""

from __future__ import annotations

from hotloop.optimizations.optimization import Choice, Optimization, leaving
from hotloop.optimizations.source_edit import Keywords

FUSED_OPTIMIZER = Optimization(
    name="fused_optimizer",
    summary="The whole update of Adam, AdamW, SGD or Adagrad in one kernel.",
    parity_class="reduction_order",
    key="optimizer.fused",
    off=False,
    settings=(True,),
    argument="fused",
    values_for=lambda seen: (
        () if (seen.optimizer or "").endswith(("foreach)", "=False)")) else (True,)
    ),
    needs="an optimizer of which the script chose neither `foreach` nor `fused`",
    choose=lambda machine, config: Choice(True, "one pass over weights and state"),
    observed=lambda census, value: (
        ("(fused)" in census.optimizer) == value if census.optimizer else None
    ),
    answers=("HL401",),
    source_form="torch.optim.AdamW(model.parameters(), fused=True)",
    source_edit=lambda value, facts: Keywords(
        "torch.optim", ("Adam", "AdamW", "SGD", "Adagrad"), {"fused": "True"}
    ),
    trainer_arguments=lambda value, applied_to: (
        'optim="adamw_torch_fused"' if set(applied_to) <= {"AdamW"} else None
    ),
    leaves="a script that chose `foreach`, `fused` or `differentiable`; weights that cannot be fused; a class with its own `step`; "
    "with momentum, weights that have no gradient at first",
    expect=leaving("optimizer_fraction", 0.0, 0.45),
    risks="Refused by torch together with foreach=True, or for parameters that are not floating point.",
)
