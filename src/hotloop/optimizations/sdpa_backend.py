"""Which kernel scaled_dot_product_attention takes: cuDNN's before the others. Not yet run on a GPU.

torch tries flash, memory-efficient, written out and cuDNN's, in this order, and takes the first that can
do what is asked for: so cuDNN's only where the written-out form cannot, which is never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop.optimizations.optimization import Optimization

if TYPE_CHECKING:
    from torch import nn

    from hotloop.core.census import Census
    from hotloop.hardware.machine import Machine
    from hotloop.optimizations.live import Report

_PREFIX, _SUFFIX = "_scaled_dot_product_", "_attention"


def _live(value: Any, report: Report) -> None:
    """The order is the process's; a `sdpa_kernel` of the script still says which may be taken at all."""
    import torch
    from torch.nn.attention import SDPBackend

    from hotloop.optimizations.compiler_use import compiler_is_used, watch_compiler
    from hotloop.optimizations.outermost import around_training_calls, device_type_of

    watch_compiler()
    first = SDPBackend.__members__.get(f"{str(value).upper()}_ATTENTION")
    if first is None:
        report.refused(f"this torch has no kernel `{value}`")
        return
    before = torch._C._get_sdp_priority_order()
    order = [first.value, *(each for each in before if each != first.value)]
    proven: set[int] = set()

    def around(call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if id(module) in proven:
            return call(*args, **kwargs)
        proven.add(id(module))
        if device_type_of(module) != "cuda":
            report.refused(f"{type(module).__name__}: on a CPU torch has one fused kernel")
            return call(*args, **kwargs)
        if compiler_is_used():
            report.refused(f"{type(module).__name__} is compiled: what it takes could not be seen")
            return call(*args, **kwargs)
        if torch._C._get_sdp_priority_order() not in (before, order):
            report.refused("the script chose an order of its own")
            return call(*args, **kwargs)
        torch._C._set_sdp_priority_order(order)
        return _watched(call, module, args, kwargs, str(value), report)

    around_training_calls(around)


def _watched(
    call: Any, module: nn.Module, args: Any, kwargs: Any, wanted: str, report: Report
) -> Any:
    """Make the call, and say which kernels it really took."""
    from torch.utils._python_dispatch import TorchDispatchMode

    taken: set[str] = set()

    class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, given: Any = (), named: Any = None
        ) -> Any:
            name = function.overloadpacket.__name__
            if name.startswith(_PREFIX):
                taken.add(name.removeprefix(_PREFIX).partition(_SUFFIX)[0])
            return function(*given, **(named or {}))

    with Kernels():  # type: ignore[no-untyped-call]
        made = call(*args, **kwargs)
    name = type(module).__name__
    if wanted in taken:
        report.applied(name)
    elif taken:
        report.refused(f"{name}: torch took {', '.join(sorted(taken))}, {wanted} cannot do it")
    else:
        report.refused(f"{name} does not call scaled_dot_product_attention")
    return made


def _values(census: Census) -> tuple[Any, ...]:
    called = any(name.startswith("sdpa:") for name in census.attention)
    on_cuda = (census.device or "").startswith("cuda")
    return ("cudnn",) if called and on_cuda and "sdpa:cudnn" not in census.attention else ()


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if machine.device_type != "cuda":
        return "on a CPU torch has one fused kernel, and takes it wherever it can"
    return None


def _observed(census: Census, value: Any) -> bool | None:
    return f"sdpa:{value}" in census.attention if census.attention else None


SDPA_BACKEND = Optimization(
    name="sdpa_backend",
    summary="scaled_dot_product_attention takes cuDNN's kernel where that can do what is asked for.",
    parity_class="reduction_order",
    settings=("cudnn",),
    values_for=_values,
    why_not=_why_not,
    observed=_observed,
    answers=("HL306",),
    source_form=(
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,\n"
        "         SDPBackend.MATH]\n"
        "with sdpa_kernel(order, set_priority=True):\n"
        "    loss = model(x, y)"
    ),
    live_form=_live,
    risks="Dropout inside attention draws other random numbers. Not every shape is faster.",
)
