"""`torch.compile` of the model: small operations fused into few kernels.

The default mode. `reduce-overhead` is not a default: with gradient accumulation it has been reported
to fail and to give wrong gradients. Compiling costs seconds to minutes at the first step, and pays
only in runs longer than that: a verdict on it counts steps after the compile, and the census carries the
seconds it took.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from hotloop.optimizations.optimization import Choice, Optimization, leaving
from hotloop.optimizations.source_edit import BeforeLoop, SourceEdit

if TYPE_CHECKING:
    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine
    from hotloop.optimizations.live import Report


def compile_model(model: nn.Module) -> None:
    """Compile in place: the type and the names of the weights stay what they were."""
    model.compile(dynamic=False)


@dataclass(frozen=True, slots=True)
class CompileCounts:
    """What the compiler did so far in this process."""

    frames: int
    graphs: int
    graph_breaks: int


def compile_counts() -> CompileCounts:
    """Reads three counters; cheap enough for every step. Loads no compiler where nothing has."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return CompileCounts(0, 0, 0)
    counters = utils.counters
    return CompileCounts(
        frames=counters["frames"]["ok"],
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(counters["graph_break"].values()),
    )


def compile_seconds() -> float | None:
    """Seconds that dynamo and everything below it took so far; `None` where this torch does not tell."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return calculate_time_spent().get("total_wall_time")
    except (ImportError, AttributeError):  # internals of another torch
        return None


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if machine.why_no_compile is not None:
        return Choice(False, machine.why_no_compile)
    return Choice(True, "the compiler has what it needs here")


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    return machine.why_no_compile if value else None


def _observed(census: Census, value: Any) -> bool | None:
    if census.compiled is None:
        return None
    return census.compiled == value and (not value or bool(census.num_graphs))


def _compile_call(module: nn.Module) -> None:
    """Like `module.compile()`, which does nothing, silently, for torch's own classes (`nn.Sequential`).

    Dynamo passes over frames of torch's own files; it does not over this one.
    """
    import torch

    if not _of_torch(module):
        module.compile()
        return

    def called(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    module._compiled_call_impl = torch.compile(called)


def _of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    if facts.get("of_torch"):
        return (
            "`model.compile()` does nothing for a class of torch's own; write `model = torch.compile(model)` "
            "before the first step (the names in its state_dict then begin with `_orig_mod.`), or make it "
            "part of a class of your own"
        )
    return BeforeLoop("{model}.compile()")


def _live(value: Any, report: Report) -> None:
    """Compile what the script trains, at its first call; shapes that vary are left to the compiler."""
    from hotloop.optimizations.outermost import around_training_calls

    compiled: set[int] = set()

    def around(call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if id(module) not in compiled:
            compiled.add(id(module))
            name = type(module).__name__
            if name == "OptimizedModule" or module._compiled_call_impl is not None:
                report.refused(f"{name}: the script compiles it")
            else:
                _compile_call(module)
                report.applied(name, of_torch=_of_torch(module))
        return call(*args, **kwargs)

    around_training_calls(around)


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
    why_not=_why_not,
    observed=_observed,
    answers=("HL302", "HL303"),
    source_form="model.compile()  # before the first step",
    source_edit=_source_edit,
    live_form=_live,
    expect=_expect,
    risks=(
        "Compiling takes seconds to minutes, and again for every new shape. Dropout draws other random "
        "numbers than eager. Data-dependent Python breaks the graph into pieces that can be slower."
    ),
)
