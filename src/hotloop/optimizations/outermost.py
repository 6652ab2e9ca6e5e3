"""The calls by which a foreign script trains its model: the outermost ones, with gradients, of a module with weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hotloop.probe.entry import around_call

Call = Callable[..., Any]
Around = Callable[[Call, nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def around_training_calls(
    around: Around,
    *,
    evaluating: bool = False,
    frozen: Callable[[nn.Module], None] = lambda module: None,
) -> None:
    """Have `around(call, module, args, kwargs)` make every such call; `call(*args, **kwargs)` goes on.

    evaluating: those without gradients, too. frozen: told once of each module that has weights, none of them
    trained, and whose call therefore stays as it is: who edits that call changes it as well.
    """
    inside = False
    told: set[int] = set()

    def watched(original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or not (evaluating or torch.is_grad_enabled()):
            return original(module, *args, **kwargs)
        if not _learns(module):
            if id(module) not in told and next(module.parameters(), None) is not None:
                told.add(id(module))
                frozen(module)
            return original(module, *args, **kwargs)
        if torch._C._current_graph_task_id() != -1:
            # A checkpointed block is computed again inside the pass backward: part of its model's call.
            return original(module, *args, **kwargs)
        inside = True
        try:
            return around(lambda *a, **k: original(module, *a, **k), module, args, kwargs)
        finally:
            inside = False

    around_call(nn.Module, "__call__", watched)


def at_first_call(action: Callable[[nn.Module], None]) -> None:
    """Call `action(module)` before the first such call of each module."""
    seen: set[int] = set()

    def around(call: Call, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if id(module) not in seen:
            seen.add(id(module))
            action(module)
        return call(*args, **kwargs)

    around_training_calls(around)


def each_tensor(made: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """What a model gives, with every tensor in its containers changed."""
    if isinstance(made, torch.Tensor):
        return change(made)
    if isinstance(made, dict):
        for key, value in made.items():  # in place: a model's own class of output stays what it is
            made[key] = each_tensor(value, change)
        return made
    if isinstance(made, (list, tuple)):
        changed = [each_tensor(value, change) for value in made]
        return type(made)(*changed) if hasattr(made, "_fields") else type(made)(changed)
    return made


def device_type_of(module: nn.Module) -> str:
    """The device type of its first weight."""
    for parameter in module.parameters():
        return parameter.device.type
    return "cpu"


def _learns(module: nn.Module) -> bool:
    """Whether it has a weight that is trained; a loss is a module too, and has none."""
    return any(parameter.requires_grad for parameter in module.parameters())
