"""What kinds of operation a step is made of, as torch's profiler saw a few steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hotloop.core.census import OperatorUse

_PRODUCTS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "_addmm_activation",
    "mkldnn_linear", "mkl_linear", "linear_backward", "mkldnn_linear_backward",
})  # fmt: skip
_ARITHMETIC = frozenset({
    "add", "sub", "mul", "div", "neg", "where", "masked_fill", "mean", "reciprocal", "square", "pow",
    "sqrt", "rsqrt", "exp", "log", "tanh", "tanh_backward", "sigmoid", "sigmoid_backward", "erf", "abs",
    "sign", "sin", "cos", "maximum", "minimum", "var_mean",
})  # fmt: skip
"""What a compiler joins with its neighbours: formulas that are written out. Not what torch has joined
already (gelu, layer_norm), and not copies: autocast's of the weights stay."""
_MOVING = frozenset({
    "add", "sub", "mul", "div", "neg", "copy", "fill", "zero", "clone", "where", "masked_fill", "relu",
    "threshold_backward", "clamp", "clamp_min", "cat", "addcmul", "addcdiv", "lerp", "sum", "mean",
    "_to_copy",
})  # fmt: skip
"""So little arithmetic that memory sets their pace, where they are long at all."""
_UPDATING = ("_foreach_", "_fused_", "_amp_", "addcmul", "addcdiv", "lerp")
"""The optimizer's, by the start of their names."""
FLOAT32 = frozenset({"float32", "float", "torch.float32"})
HALF = frozenset({"bfloat16", "float16", "half", "torch.bfloat16", "torch.float16", "c10::BFloat16", "c10::Half"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operations:
    """Times are per step: on the host where the model runs on the CPU, else on the device."""

    uses: tuple[OperatorUse, ...]
    step_s: float
    """Seconds of the steps that were profiled, not of others: the profiler and other programs may have slowed
    them, and their operations with them."""
    on_cpu: bool

    def seconds(self, use: OperatorUse) -> float:
        return use.self_s if self.on_cpu else use.device_s

    def share(self, belongs: Callable[[OperatorUse], bool]) -> float:
        """The share of the step's wall time, at most 1."""
        total = math.fsum(self.seconds(use) for use in self.uses if belongs(use))
        return min(total / self.step_s, 1.0)

    def is_operation(self, use: OperatorUse) -> bool:
        """Whether it computes: no bracket around others, like `Optimizer.step#SGD.step`."""
        if not self.on_cpu:
            return use.device_s > 0
        return "::" in use.name and not use.name.startswith("autograd::") and use.self_s > 0

    def num(self, belongs: Callable[[OperatorUse], bool]) -> float:
        return math.fsum(use.num for use in self.uses if belongs(use))

    def site(self, belongs: Callable[[OperatorUse], bool]) -> str | None:
        """The place at which most of that time was spent."""
        used = [use for use in self.uses if use.site and belongs(use)]
        return max(used, key=self.seconds).site if used else None

    def mean_s(self) -> float | None:
        """Length of an operation that computes; `None` for none."""
        real = [use for use in self.uses if self.is_operation(use) and use.num > 0]
        num = math.fsum(use.num for use in real)
        return math.fsum(self.seconds(use) for use in real) / num if num else None

    def long_share(self, longer_than_s: float) -> float:
        """The share of the step in operations of forward and backward that are on average longer than this."""
        return self.share(
            lambda use: (
                use.num > 0 and self.seconds(use) / use.num > longer_than_s and not is_updating(use)
            )
        )


def bare_name(use: OperatorUse) -> str:
    """`add` of `aten::add_`; names that begin with an underscore keep it."""
    return use.name.rpartition("::")[2].rstrip("_")


def is_product(use: OperatorUse) -> bool:
    return bare_name(use) in _PRODUCTS or is_convolution(use)


def is_convolution(use: OperatorUse) -> bool:
    return "convolution" in use.name or "slow_conv" in use.name


def is_elementwise(use: OperatorUse) -> bool:
    return bare_name(use) in _ARITHMETIC


def is_moving(use: OperatorUse) -> bool:
    return bare_name(use) in _MOVING


def is_softmax(use: OperatorUse) -> bool:
    return bare_name(use) in ("_softmax", "_softmax_backward_data")


def is_batched_product(use: OperatorUse) -> bool:
    return bare_name(use) in ("bmm", "baddbmm")


def is_updating(use: OperatorUse) -> bool:
    return bare_name(use).startswith(_UPDATING)
