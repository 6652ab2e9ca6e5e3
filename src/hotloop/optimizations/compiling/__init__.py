"""`torch.compile` of the model: small operations fused into few kernels.

The default mode. `reduce-overhead` is not a default: with gradient accumulation it has been reported
to fail and to give wrong gradients. Compiling costs seconds to minutes at the first step, and pays
only in runs longer than that: a verdict on it counts steps after the compile, and the census carries the
seconds it took.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization, leaving, live_in
from hotloop.optimizations.source_edit import BeforeLoop, SourceEdit


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if machine.why_no_compile is not None:
        return Choice(False, machine.why_no_compile)
    return Choice(True, "the compiler has what it needs here")


def _observed(census: Census, value: Any) -> bool | None:
    if census.compiled is None:
        return None
    return census.compiled == value and (not value or bool(census.num_graphs))


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    if facts.get("of_torch"):
        return (
            "`model.compile()` does nothing for a class of torch's own; write `model = torch.compile(model)` "
            "before the first step (the names in its state_dict then begin with `_orig_mod.`), or make it "
            "part of a class of your own"
        )
    return BeforeLoop("{model}.compile()")


def _expect(evidence: Mapping[str, Any], value: Any) -> tuple[float, float] | None:
    """One pass over the memory is left of what is fused. Of what is short, Python and some of the starting; or
    more than before, where guards and calls of compiled code take longer than the few operations they replace."""
    if "elementwise_fraction" in evidence:
        return leaving("elementwise_fraction", 0.2, 0.7)(evidence, value)
    return leaving("launch_fraction", 0.2, 1.5)(evidence, value)


COMPILE = Optimization(
    name="compile",
    summary="The model compiled with torch.compile: fewer passes over memory, fewer kernels to launch.",
    parity_class="reduction_order",
    key="train.compile",
    off=False,
    settings=(True,),
    choose=_choose,
    why_not=lambda machine, value, config: machine.why_no_compile if value else None,
    falls_back=True,
    observed=_observed,
    unobserved="torch.compile compiled nothing of it",
    answers=("HL302", "HL303"),
    source_form="model.compile()  # before the first step",
    source_edit=_source_edit,
    trainer_arguments=lambda value, applied_to: "torch_compile=True",
    leaves="a script that compiles the model itself",
    live_form=live_in(__name__),
    expect=_expect,
    start_s=20.0,
    risks=(
        "Compiling takes seconds to minutes, and again for every new shape. Dropout draws other random "
        "numbers than eager. Data-dependent Python breaks the graph into pieces that can be slower."
    ),
)
