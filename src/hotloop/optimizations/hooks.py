"""The moments of a foreign script at which live forms act: its steps, calls of its model, the making of its loader.

The loader that trains is the one that the diagnosed run saw: a variable names it, and no other loader changes.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.core.child import FIXES_SETTINGS, LOADER
from hotloop.optimizations.live_report import Report
from hotloop.probe.entry import after_called_step, after_step, around_call, before_step
from hotloop.probe.foreign_process import learns
from hotloop.probe.loader_place import LoaderPlaces, around_construction, is_named
from hotloop.probe.step_rule import Ends, StepRule

TORCH = str(Path(torch.__file__).parent)
"""Files of torch begin so."""
StepEnded = Callable[[int, torch.optim.Optimizer | None], None]
"""Called with the number of steps so far, and the optimizer of the last update, where there was one."""


def after_each_step(action: StepEnded) -> None:
    """Call `action(number, optimizer)` at the end of every step, 1 for the first of this process."""
    rule = StepRule()
    last: weakref.ref[torch.optim.Optimizer] | None = None

    def updated(optimizer: torch.optim.Optimizer) -> None:
        nonlocal last
        if rule.updated(optimizer) is not Ends.NOTHING:
            action(rule.steps, optimizer)
        elif last is None or last() is not optimizer:
            last = weakref.ref(optimizer)

    def called() -> None:
        rule.called()
        action(rule.steps, last() if last is not None else None)

    after_step(updated)
    after_called_step(called)


def at_step_end(action: StepEnded, report: Report) -> None:
    """`after_each_step`, for a technique: where it fails it is refused, and called no more."""
    works = True

    def ended(number: int, optimizer: torch.optim.Optimizer | None) -> None:
        nonlocal works
        if not works:
            return
        try:
            action(number, optimizer)
        except Exception as error:  # noqa: BLE001
            works = False
            report.refused(f"{type(error).__name__}: {error}")

    after_each_step(ended)


def after_first_step(
    action: Callable[[torch.optim.Optimizer | None], None], report: Report
) -> None:
    """Call `action(optimizer)` at the end of the first step; as `at_step_end`."""

    def ended(number: int, optimizer: torch.optim.Optimizer | None) -> None:
        if number == 1:
            action(optimizer)

    at_step_end(ended, report)


def at_step_start(action: Callable[[torch.optim.Optimizer], None], report: Report) -> None:
    """Call `action(optimizer)` before the first update by each optimizer."""
    seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def stepping(optimizer: torch.optim.Optimizer) -> None:
        if optimizer in seen:
            return
        seen.add(optimizer)
        try:
            action(optimizer)
        except Exception as error:  # noqa: BLE001
            report.refused(f"{type(error).__name__}: {error}")

    before_step(stepping)


def optimizer_device_type(optimizer: torch.optim.Optimizer | None) -> str:
    """The device of its first weight; without an optimizer, of a GPU that is in use."""
    if optimizer is None:
        return "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
    parameters: Any = (each for group in optimizer.param_groups for each in group["params"])
    return next((parameter.device.type for parameter in parameters), "cpu")


Call = Callable[..., Any]
Around = Callable[[Call, nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def around_training_calls(
    around: Around,
    *,
    evaluating: bool = False,
    frozen: Callable[[nn.Module], None] = lambda module: None,
) -> None:
    """Have `around(call, module, args, kwargs)` make every outermost call, with gradients, of a module with weights.

    `call(*args, **kwargs)` makes the call as it was.

    evaluating: those without gradients, too. frozen: told of each call of a module that has weights, none of them
    trained, and whose call therefore stays as it is: who edits that call changes it as well.
    """
    inside = False

    def watched(original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or not (evaluating or torch.is_grad_enabled()):
            return original(module, *args, **kwargs)
        if not learns(module):
            if next(module.parameters(), None) is not None:
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


class WatchedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, `look(function, args, made)` is called after every operation of torch."""

    def __init__(self, look: Callable[[Any, tuple[Any, ...], Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look = look

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        self._look(function, args, made)
        return made


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


def module_device_type(module: nn.Module) -> str:
    """The device type of its first weight."""
    return next((parameter.device.type for parameter in module.parameters()), "cpu")


_compile_called = False


@functools.cache
def watch_compiler() -> None:
    """Watch for compiling from now on; to be called when torch has just been imported.

    Who wants to see single operations needs a dispatch mode, and a frame that dynamo meets under one is never
    compiled again: the script would be slower for having been looked at, or fail with `fullgraph=True`.
    """

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        global _compile_called
        _compile_called = True
        return original(*args, **kwargs)

    around_call(torch, "compile", around)


def compiler_is_used() -> bool:
    """Whether something was compiled, or a technique beside this one is about to compile it."""
    return _compile_called or "compile" in json.loads(os.environ.get(FIXES_SETTINGS) or "{}")


Arguments = dict[str, Any]
Change = Callable[[Any, Mapping[str, Any]], "Arguments | str"]
"""From the technique's value and all arguments of the loader to those that become others, or why none does, in words
after its dataset's name."""


def set_arguments(change: Change, value: Any, report: Report, *, says_itself: bool = False) -> None:
    """Have the loader that trains made with what `change` makes of its arguments.

    says_itself: what they are set to says later whether it took effect.
    """
    seen = json.loads(os.environ.get(LOADER, "{}"))
    if not seen:
        report.refused("where the loader that trains is made was not seen in the first run")
        return
    places = LoaderPlaces(seen["workdir"])
    reached = False

    def make(original: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal reached
        if not is_named(*places.name(), seen["made"]):
            return original(loader, *args, **kwargs)
        reached = True
        given = inspect.signature(original).bind(loader, *args, **kwargs)
        given.apply_defaults()
        name = type(given.arguments["dataset"]).__name__
        changed = change(value, given.arguments)
        if isinstance(changed, str):
            report.refused(f"{name} {changed}")
        else:
            given.arguments.update(changed)
            values = ", ".join(f"{key}={_shown(value)}" for key, value in changed.items())
            if not says_itself:
                report.applied(f"the loader of {name} has {values}")
        return original(*given.args, **given.kwargs)

    def stepped(optimizer: Any) -> None:
        if not reached:
            report.refused(
                f"before the first step no loader was made at {seen['site']} the way it was in the first run"
            )

    around_construction(make)
    after_step(stepped)


def _shown(value: Any) -> str:
    """An argument as a reader knows it: objects by their class, which have no name of their own."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value)
    return str(getattr(value, "__name__", type(value).__name__))


def set_ddp_argument(name: str, value: bool, report: Report) -> None:
    """Have every DistributedDataParallel of the script made with `name=value`, where it would be made otherwise."""

    def made(original: Any, wrapped: Any, *args: Any, **kwargs: Any) -> None:
        signature = inspect.signature(original)
        given = signature.bind(wrapped, *args, **kwargs)
        if given.arguments.get(name, signature.parameters[name].default) == value:
            report.refused(f"the script has {name}={value}")
            original(wrapped, *args, **kwargs)
            return
        given.arguments[name] = value
        original(*given.args, **given.kwargs)
        report.applied("DistributedDataParallel")

    around_call(DistributedDataParallel, "__init__", made)
