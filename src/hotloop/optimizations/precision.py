"""Mixed precision: matrix products in a dtype that the hardware computes faster than fp32.

Weights, gradients and optimizer state stay fp32 (Micikevicius et al. 2018); `torch.autocast` casts
at the products. bf16 has the range of fp32 and needs no scaler; fp16 does not and does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from hotloop.optimizations.optimization import Choice, Optimization
from hotloop.optimizations.source_edit import AroundCall, SetUp, SourceEdit

if TYPE_CHECKING:
    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine
    from hotloop.optimizations.live import Report

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CENSUS_NAME = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}


def autocast(device_type: str, precision: str) -> AbstractContextManager[Any]:
    """The context a forward runs in: autocast for bf16 and fp16, nothing otherwise."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype)


def gradient_scaler(device_type: str, precision: str) -> torch.amp.GradScaler | None:
    """A scaler for fp16, `None` for what needs none."""
    return torch.amp.GradScaler(device_type) if precision == "fp16" else None


def set_tf32(precision: str) -> None:
    """Turn TF32 on or off for products and convolutions of this process.

    Through the older switches: after a write through `fp32_precision`, other code that reads
    `allow_tf32` raises.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    if "bfloat16" in machine.fast_dtypes:
        return Choice("bf16", "the hardware multiplies bf16 natively")
    if "float16" in machine.fast_dtypes:
        return Choice("fp16", "the hardware multiplies fp16 natively, bf16 not")
    return Choice("fp32", "no smaller dtype is native here")


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if value == "tf32" and machine.device_type != "cuda":
        return "tf32 is a mode of NVIDIA GPUs; this run is on the CPU"
    name = _CENSUS_NAME[value]
    if value != "fp32" and name not in machine.fast_dtypes:
        return f"{name} is only emulated on this device"
    return None


def _observed(census: Census, value: Any) -> bool | None:
    return _CENSUS_NAME[value] in census.matmul_dtypes if census.matmul_dtypes else None


def _live(value: Any, report: Report) -> None:
    """`tf32`: the switches. `bf16`: the script's model runs under autocast, and gives fp32.

    Without a scaler fp16 overflows, and a scaler cannot be put around somebody's backward.
    """
    if value == "tf32":
        set_tf32("tf32")
        report.applied("matrix products and convolutions")
        return
    if value != "bf16":
        report.refused(f"{value} needs a gradient scaler in the script")
        return
    from hotloop.optimizations.compiler_use import compiler_is_used, watch_compiler
    from hotloop.optimizations.outermost import around_training_calls, device_type_of

    watch_compiler()
    multiplies: dict[int, bool] = {}
    """By model, whether it is put under autocast, as its first call showed."""
    told: set[Any] = set()

    def around(call: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        device_type = device_type_of(module)
        name = type(module).__name__
        if torch.is_autocast_enabled(device_type):
            report.refused(f"{name}: the script autocasts it")
            return call(*args, **kwargs)
        if multiplies.get(id(module)) is False:
            return call(*args, **kwargs)
        with autocast(device_type, "bf16"):
            if id(module) in multiplies:
                made = call(*args, **kwargs)
            elif compiler_is_used():
                multiplies[id(module)] = True
                name += ", compiled: its products were not looked at"
                made = call(*args, **kwargs)
            else:
                made, why_not = _watched(call, args, kwargs)
                multiplies[id(module)] = why_not is None
                if why_not is not None:
                    report.refused(f"{name}: {why_not}")
        if multiplies[id(module)]:
            key = (id(module), type(made), report.called_from())
            if key not in told:
                told.add(key)
                report.applied(name, device_type=device_type, made=_kind(made))
        return _as_fp32(made)

    def frozen(module: torch.nn.Module) -> None:
        report.refused(f"{type(module).__name__}: none of its weights is trained")

    around_training_calls(around, frozen=frozen)


def _watched(call: Any, args: Any, kwargs: Any) -> tuple[Any, str | None]:
    """Make the call under autocast, and say why the others should not be."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: set[torch.dtype] = set()
    made_by: dict[int, str] = {}
    """By address of a tensor's memory, the operation that last wrote what is no mere copy."""

    class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, given: Any = (), named: Any = None
        ) -> Any:
            result = function(*given, **(named or {}))
            kind = function.overloadpacket.__name__
            if not isinstance(result, torch.Tensor):
                return result
            if kind in _PRODUCTS:
                seen.add(result.dtype)
            first = given[0] if given and isinstance(given[0], torch.Tensor) else None
            from_memory = first is not None and _memory(first)
            if kind in _COPIES:
                made_by[_memory(result)] = made_by.get(from_memory or 0, kind)
            elif kind.endswith("_") or _memory(result) != from_memory:  # else it is a view
                made_by[_memory(result)] = kind.strip("_")
            return result

    with Products():  # type: ignore[no-untyped-call]
        made = call(*args, **kwargs)
    if torch.bfloat16 not in seen:
        return made, "no matrix product of it ran in bf16"
    for tensor in _tensors(made):
        kind = made_by.get(_memory(tensor), "")
        if tensor.dtype == torch.bfloat16 and kind in _NEEDS_DIGITS:
            return made, (
                f"it ends in {kind} in bf16, which has too few digits for what is almost 0 or 1: let the model "
                "give what comes before it, and use the loss that takes that (`BCEWithLogitsLoss`, `cross_entropy`)"
            )
    return made, None


def _memory(tensor: torch.Tensor) -> int:
    """Where its elements lie: the same for its views."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # it has none
        return 0


def _tensors(made: Any) -> list[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return [made]
    if isinstance(made, dict):
        made = made.values()
    elif not isinstance(made, (list, tuple)):
        return []
    return [tensor for each in made for tensor in _tensors(each)]


_NEEDS_DIGITS = {
    *("sigmoid", "softmax", "log_softmax", "exp", "log", "log_sigmoid_forward"),
    *("softplus", "logsumexp", "log1p", "expm1"),
}
_COPIES = {"clone", "_to_copy", "contiguous", "clamp", "clamp_min", "clamp_max"}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "matmul"}


def _as_fp32(made: Any) -> Any:
    """Tensors of bf16 in what a model gives as fp32: a loss outside is computed as ever."""
    if isinstance(made, torch.Tensor):
        return made.float() if made.dtype == torch.bfloat16 else made
    if isinstance(made, dict):
        for key, value in made.items():  # in place: a model's own class of output stays what it is
            made[key] = _as_fp32(value)
        return made
    if isinstance(made, tuple) and hasattr(made, "_fields"):
        return type(made)(*map(_as_fp32, made))
    if isinstance(made, (list, tuple)):
        return type(made)(map(_as_fp32, made))
    return made


def _kind(made: Any) -> str:
    """How much the patch has to write to do to it what `_as_fp32` does."""
    if isinstance(made, torch.Tensor):
        return "tensor"
    if type(made) is tuple and all(each is None or torch.is_tensor(each) for each in made):
        return "tuple"
    return "any"


_NAME = "in_bf16"
_HEAD = f'''def {_NAME}(model, /, *args, **kwargs):
    """model(*args, **kwargs) with its matrix products in bfloat16; what it gives is float32, as before."""
    if not torch.is_grad_enabled():
        return model(*args, **kwargs)
    with torch.autocast("DEVICE", dtype=torch.bfloat16):
        made = model(*args, **kwargs)
'''
_TAILS = {
    "tensor": """\
    return made.float() if made.dtype == torch.bfloat16 else made
""",
    "tuple": """\
    return tuple(
        each.float() if torch.is_tensor(each) and each.dtype == torch.bfloat16 else each for each in made
    )
""",
    "any": """\
    return as_float32(made)


def as_float32(made):
    if torch.is_tensor(made):
        return made.float() if made.dtype == torch.bfloat16 else made
    if isinstance(made, dict):
        for key, value in made.items():
            made[key] = as_float32(value)
        return made
    if isinstance(made, tuple) and hasattr(made, "_fields"):
        return type(made)(*map(as_float32, made))
    if isinstance(made, (list, tuple)):
        return type(made)(map(as_float32, made))
    return made
""",
}


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    """What the live form does, and nothing else: the loss outside the model stays out of autocast."""
    if value == "tf32":
        return SetUp(
            (
                "torch.backends.cuda.matmul.allow_tf32 = True",
                "torch.backends.cudnn.allow_tf32 = True",
            )
        )
    if value != "bf16" or "device_type" not in facts:
        return "its live form did not say where"
    device_type = facts["device_type"]
    return AroundCall(
        _NAME,
        _HEAD.replace("DEVICE", device_type) + _TAILS[facts.get("made", "any")],
        f'call the model under `torch.autocast("{device_type}", dtype=torch.bfloat16)`, and turn what it '
        "gives to float32 after it",
    )


_SPEEDUP = (1.8, 4.0)
"""Of products in the shorter type: what CPUs with AVX512-BF16 or AMX gave public scripts."""
_CAST_S = (1e-5, 4e-5)
"""Casting what goes into a product and what comes back."""
_OTHERS = (0.0, 0.4)
"""Share of other long operations that goes: they move half the bytes at best, and stay fp32 at worst."""


def _expect(evidence: Mapping[str, Any], value: Any) -> tuple[float, float] | None:
    """What products and the operations after them save, less the casts.

    saved = products (1 - 1 / speedup - cast / length of a product) + others x their share
    """
    products, length = evidence.get("product_fraction"), evidence.get("product_s")
    others = evidence.get("others_fraction") or 0.0
    if not products or not length:
        return None
    least, most = (
        products * (1 - 1 / speedup - cast / length) + share * others
        for speedup, cast, share in zip(_SPEEDUP, reversed(_CAST_S), _OTHERS, strict=True)
    )
    return 1 / (1 - least), 1 / (1 - most)


PRECISION = Optimization(
    name="precision",
    summary="Matrix products in bf16, fp16 or tf32 instead of fp32; weights and optimizer stay fp32.",
    parity_class="reduced_precision",
    key="train.precision",
    off="fp32",
    settings=("bf16", "fp16", "tf32"),
    choose=_choose,
    why_not=_why_not,
    observed=_observed,
    answers=("HL301",),
    source_form="with torch.autocast(device_type, dtype=torch.bfloat16):\n    loss = model(x, y)",
    source_edit=_source_edit,
    live_form=_live,
    expect=_expect,
    risks=(
        "fp16 overflows without its scaler, and an overflowing step is skipped. Emulated dtypes are "
        "slower than fp32. Sums over many terms lose digits: the loss stays fp32."
    ),
)
