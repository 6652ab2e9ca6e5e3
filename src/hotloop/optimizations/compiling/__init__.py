"""`torch.compile` of the model: small operations fused into few kernels.

Compiling costs seconds to minutes at the first step, and pays only in runs longer than that: a verdict on it
counts steps after the compile, and the census carries the seconds it took.

hotloop's own trainer can compile a block for all layers, as torchtitan does (torch calls it regional compilation),
or in another of torch's modes. Two of these replay CUDA graphs, whose results lie where those of the last replay
did: the gradients of a microbatch would be written over by the next one's (torch 2.13 ends with an error that says
so, in `format_dealloc_msg` of `_inductor/cudagraph_trees.py`; wrong gradients have been reported of earlier ones).

A fine-tuning, whose steps have rows of other lengths each, compiles each layer once for all lengths; attention is one operation
of it (`finetune/compiled_attention.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization, leaving
from hotloop.optimizations.source_edit import BeforeLoop, SourceEdit

BLOCKS = "blocks"
SLOWER = "compiled, steps of an encoder took longer on a CPU"
UNMEASURED = "whether steps of this fine-tuning are faster compiled here was not measured"
AUTOTUNE, WITH_GRAPHS = "max-autotune-no-cudagraphs", ("max-autotune", "reduce-overhead")


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if "task" in config:
        is_encoder = config["task"] not in ("instructions", "text")
        return Choice(False, SLOWER if is_encoder and machine.device_type == "cpu" else UNMEASURED)
    if machine.why_no_compile is not None:
        return Choice(False, machine.why_no_compile)
    return Choice(True, "the compiler has what it needs here")


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if value and machine.why_no_compile is not None:
        return machine.why_no_compile
    if value in WITH_GRAPHS and machine.device_type != "cuda":
        return "it replays CUDA graphs, which a GPU alone has"
    # Of several processes each has a microbatch of the step, so that they are refused with this.
    if value in WITH_GRAPHS and config["train.grad_accum_steps"] > 1:
        return "it replays CUDA graphs, and with `train.grad_accum_steps` above 1 gradients would be overwritten"
    if value == AUTOTUNE and machine.device_type == "cpu":
        return "on a CPU torch has products to choose among for weights that never change, not for training"
    return None


def _observed(census: Census, value: Any) -> bool | None:
    if census.compiled is None:
        return None
    return census.compiled == bool(value) and (not value or bool(census.num_graphs))


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
    trainer_settings=(BLOCKS, AUTOTUNE, *WITH_GRAPHS),
    choose=_choose,
    why_not=_why_not,
    is_only_slow=lambda value: value == AUTOTUNE,
    falls_back=lambda machine: machine.why_no_compile is not None,
    observed=_observed,
    unobserved="torch.compile compiled nothing of it",
    answers=("HL302", "HL303"),
    source_form="model.compile()  # before the first step",
    source_edit=_source_edit,
    trainer_arguments=lambda value, applied_to: "torch_compile=True",
    leaves="a script that compiles the model itself",
    expect=_expect,
    start_s=20.0,
    risks=(
        "Compiling takes seconds to minutes, and again for every new shape. Dropout draws other random "
        "numbers than eager. Data-dependent Python breaks the graph into pieces that can be slower."
    ),
)
