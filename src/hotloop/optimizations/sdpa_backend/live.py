"""Putting cuDNN's attention kernel first in a running script. Run on an H100, torch 2.11."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend

from hotloop.optimizations.hooks import (
    WatchedOperations,
    around_training_calls,
    compiler_is_used,
    module_device_type,
    watch_compiler,
)
from hotloop.optimizations.live_report import Report

_PREFIX, _SUFFIX = "_scaled_dot_product_", "_attention"


def apply(value: Any, report: Report) -> None:
    """The order is the process's; a `sdpa_kernel` of the script still says which may be taken at all."""
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
        if module_device_type(module) != "cuda":
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
    taken: set[str] = set()

    def look(function: Any, given: Any, made: Any) -> None:
        name = function.overloadpacket.__name__
        if name.startswith(_PREFIX):
            taken.add(name.removeprefix(_PREFIX).partition(_SUFFIX)[0])

    with WatchedOperations(look):
        made = call(*args, **kwargs)
    name = type(module).__name__
    if wanted in taken:
        report.applied(name)
    elif taken:
        report.refused(f"{name}: torch took {', '.join(sorted(taken))}, {wanted} cannot do it")
    else:
        report.refused(f"{name} does not call scaled_dot_product_attention")
    return made
