"""GELU's curve by a sigmoid instead of a tanh: the same mathematics, fewer instructions.

GPT-2's GELU is `0.5 x (1 + tanh(u))`, which is `x sigmoid(2u)`. Under the compiler both are one pass, and
on a CPU that pass is bound by its arithmetic: forward and backward of a tanh take about twice as long
as those of a sigmoid, which is one exponential. Eager, written out, it would be many passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization

_FAMILY_HAS = {"gpt2": "gelu", "llama": "swiglu"}
"""As in `core/model_config.py`, which needs more than the standard library."""


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if (config["model.mlp"] or _FAMILY_HAS[config["model.family"]]) != "gelu":
        return Choice("tanh", "the model has no GELU")
    if not config["train.compile"]:
        return Choice("tanh", "without the compiler torch's own kernel is one pass")
    if machine.device_type != "cpu":
        return Choice("tanh", "GPUs have an instruction for tanh; not measured")
    return Choice("sigmoid", "an exponential is cheaper than a tanh on a CPU")


GELU = Optimization(
    name="gelu",
    summary="GELU's curve by a sigmoid instead of a tanh, for the compiler to fuse.",
    parity_class="reduction_order",
    key="train.gelu",
    off="tanh",
    after=("compile",),
    settings=("sigmoid",),
    choose=_choose,
    source_form="x * torch.sigmoid(1.5957691216057308 * (x + 0.044715 * x**3))  # in fp32, inside torch.compile",
    no_live_form="a script's own activation is not rewritten while it runs",
    conflicts=("sigmoid needs compile: eager, it is many passes",),
    risks="None known.",
)
