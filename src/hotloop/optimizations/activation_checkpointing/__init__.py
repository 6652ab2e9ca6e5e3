"""Memory bought with time, for a larger batch: whether that pays only a run with that batch shows, which is another
training. So this is a what-if, and is not tried unless asked for (`--only checkpointing`).

hotloop's trainer does it block by block (Chen et al. 2016, arXiv 1604.06174), where `train.activation_checkpointing` says so:
all of a block, or all but its products and attention, or as much as its compiler finds cheapest within a memory budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.hardware.limits import Machine
from hotloop.optimizations.compiling import BLOCKS
from hotloop.optimizations.optimization import Choice, Optimization

_BUDGET = "budget="


def memory_budget(value: Any) -> float | None:
    """0.5 of `budget=0.5`; `None` of any other value."""
    given = isinstance(value, str) and value.startswith(_BUDGET)
    return float(value.removeprefix(_BUDGET)) if given else None


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if memory_budget(value) is not None and not config["train.compile"]:
        return "the compiler keeps within a budget, and the model is not compiled"
    if value == "selective" and config["train.compile"] == BLOCKS:
        return "what is kept of a block is chosen among its operations, and a compiled block is one"
    return None


ACTIVATION_CHECKPOINTING = Optimization(
    name="checkpointing",
    summary="What-if: activations of a Hugging Face model, or of hotloop's own, are computed again in the pass backward "
    "instead of kept. Takes time, saves the memory that a larger batch needs.",
    parity_class="bitwise",
    key="train.activation_checkpointing",
    off="none",
    after=("compile",),
    settings=("full",),
    trainer_settings=("selective", "budget=0.5"),
    values_for=lambda census: (True,),
    choose=lambda machine, config: Choice(
        "none", "it takes time, and pays only where memory is short"
    ),
    why_not=_why_not,
    source_form='model.gradient_checkpointing_enable({"use_reentrant": False})',
    leaves="other models, of which nobody knows the blocks; a model that does it already",
    what_if=True,
    risks="Every step gets slower, by up to a third. It pays only where the larger batch does.",
)
