"""Compiling the model of a running script at its first call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hotloop.optimizations.hooks import at_first_call
from hotloop.optimizations.live_report import Report


def _compile_call(module: nn.Module) -> None:
    """Like `module.compile()`, which does nothing, silently, for torch's own classes (`nn.Sequential`).

    Dynamo passes over frames of torch's own files; it does not over this one.
    """
    if not _of_torch(module):
        module.compile()
        return

    def called(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    module._compiled_call_impl = torch.compile(called)


def _of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def apply(value: Any, report: Report) -> None:
    """Compile what the script trains, at its first call; shapes that vary are left to the compiler."""

    def compile_it(module: nn.Module) -> None:
        name = type(module).__name__
        if name == "OptimizedModule" or module._compiled_call_impl is not None:
            report.refused(f"{name}: the script compiles it")
        else:
            _compile_call(module)
            report.applied(name, of_torch=_of_torch(module))

    at_first_call(compile_it)
