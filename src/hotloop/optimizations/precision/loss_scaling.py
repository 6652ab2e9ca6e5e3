"""fp16 in a running script: its loss scaled, and its gradients unscaled before anything reads them.

What `torch.amp.GradScaler` does in a loop that is written for it, with torch's own scaler: `scale(loss).backward()`,
`unscale_` before gradients are clipped or the optimizer steps, no update where a gradient overflowed, `update()`.
Where that cannot be seen to be right, `wrong` ends the trial and says why.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.parallel import DistributedDataParallel

import hotloop
from hotloop.optimizations.live_report import Report, Toggle
from hotloop.optimizations.precision import INIT_SCALE
from hotloop.probe.entry import after_step, around_call, around_method, at_end, before_step

_OWN = str(Path(hotloop.__file__).parent)
"""Files of hotloop begin so."""
_CLIPPING = ("clip_grad_norm_", "clip_grad_value_")
_TENSOR_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
_MODULE_HOOKS = ("register_full_backward_hook", "register_full_backward_pre_hook")


def reason_not_scaled(module: torch.nn.Module) -> str | None:
    """Why the gradients of a model cannot be unscaled as `GradScaler` does it; `None`: they can."""
    if any(each.dtype != torch.float32 for each in module.parameters() if each.requires_grad):
        return "not all of its weights are float32, which a gradient scaler needs"
    distributed = torch.distributed
    if (
        distributed.is_available()
        and distributed.is_initialized()
        and not isinstance(module, DistributedDataParallel)
    ):
        # An overflow has to be seen by all processes, or some would step and others not.
        return "of several processes, gradients are scaled under DistributedDataParallel alone"
    return None


class LossScaling:
    """Scales every backward pass from `start` on, while `is_on`."""

    def __init__(self, report: Report) -> None:
        self.is_on = True
        self.has_failed = False
        """It was seen not to be right here, and was reported as wrong."""
        self._report = report
        self._scaler: torch.amp.GradScaler | None = None
        self._gradients: Literal["none", "scaled", "unscaled"] = "none"
        self._is_in_backward = False
        self._made: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._optimizer: torch.optim.Optimizer | None = None
        """The one that steps, while a step is under way; and from the first step on, the only one."""
        self._is_stepping = False
        self._held_back: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._reported: set[Any] = set()
        self._facts: dict[str, Any] = {}
        self._toggle: Toggle | None = None
        self._watch()

    def start(self, device_type: str) -> None:
        """Called before the first call of a model under autocast."""
        if self._scaler is None:
            self._scaler = torch.amp.GradScaler(device_type, init_scale=INIT_SCALE)

    def describe(self, facts: dict[str, Any], toggle: Toggle | None) -> None:
        """What the report says of the model's call, for the other places where it takes effect."""
        self._facts, self._toggle = facts, toggle

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """For the model's call: a compiler that traces it must not meet another `Tensor.grad`."""
        is_watched = "grad" in vars(torch.Tensor)
        self._watch_reads(False)
        try:
            yield
        finally:
            self._watch_reads(is_watched)

    def _watch(self) -> None:
        around_method(torch.Tensor, "backward", self._backward)
        around_call(torch.autograd, "backward", self._backward_of_tensors)
        around_call(torch.autograd, "grad", self._grad)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in _CLIPPING:
                around_call(owner, name, self._clip)
        for name in _TENSOR_HOOKS:
            around_method(torch.Tensor, name, self._hook)
        for name in _MODULE_HOOKS:
            around_call(torch.nn.Module, name, self._hook)
        around_call(torch.amp.GradScaler, "scale", self._scale)
        around_call(torch.optim.Optimizer, "__init__", self._make)
        before_step(self._before_step)
        after_step(self._after_step)
        at_end(lambda: self._watch_reads(False))

    @property
    def _acts(self) -> bool:
        return self._scaler is not None and self.is_on and not self.has_failed

    def _fail(self, why: str) -> None:
        if not self.has_failed:
            self.has_failed = True
            self._watch_reads(False)
            say = self._report.refused if self._scaler is None else self._report.wrong
            say(f"its loss cannot be scaled for fp16: {why}")

    def _applied(self, part: str) -> None:
        """Once for each place, with what the patch writes there."""
        key = (part, self._report.called_from())
        if key not in self._reported:
            self._reported.add(key)
            self._report.applied(part, toggle=self._toggle, **self._facts, part=part)

    def _backward(self, original: Any, loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self._acts or self._is_in_backward:
            return original(loss, *args, **kwargs)
        why = self._reason_not_backward(loss, args, kwargs)
        if why is not None:
            self._fail(why)
            return original(loss, *args, **kwargs)
        assert self._scaler is not None
        self._applied("backward")
        self._watch_reads(False)
        self._is_in_backward = True
        try:
            made = original(self._scaler.scale(loss), *args, **kwargs)
        finally:
            self._is_in_backward = False
        self._gradients = "scaled"
        self._watch_reads(True)
        return made

    def _reason_not_backward(self, loss: torch.Tensor, args: Any, kwargs: Any) -> str | None:
        if self._is_stepping:
            return (
                "the loss goes backward inside of optimizer.step, in a closure "
                '(Lightning scales it itself with precision="16-mixed")'
            )
        if self._gradients == "unscaled":
            return "a loss goes backward between clipping or reading gradients and the optimizer's step"
        if args or any(kwargs.get(each) for each in ("create_graph", "inputs")):
            return "backward is given more than retain_graph"
        if kwargs.get("gradient") is not None or loss.numel() != 1:
            return "backward is given a gradient"
        return None

    def _backward_of_tensors(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._acts and not self._is_in_backward:
            self._fail("torch.autograd.backward is called")
        return original(*args, **kwargs)

    def _grad(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._acts and not self._is_in_backward:
            self._fail("torch.autograd.grad is called, whose gradients are not scaled")
        return original(*args, **kwargs)

    def _hook(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        # One before the start may be of another model; its gradients are scaled from then on, too.
        if not self.has_failed and not self._is_in_backward:
            self._fail("a hook is given gradients while they are scaled")
        return original(*args, **kwargs)

    def _scale(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler is not self._scaler and scaler.is_enabled() and self._acts:
            self._fail("the script has a gradient scaler")
        return original(scaler, *args, **kwargs)

    def _make(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self._made.add(optimizer)
        original(optimizer, *args, **kwargs)

    def _clip(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._gradients == "scaled":
            self._applied("clip")
            self._unscale(self._only_optimizer())
        return original(*args, **kwargs)

    def _only_optimizer(self) -> torch.optim.Optimizer | None:
        if self._optimizer is not None:
            return self._optimizer
        made = list(self._made)
        return made[0] if len(made) == 1 else None

    def _unscale(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._watch_reads(False)
        self._gradients = "unscaled"
        if optimizer is None or (self._optimizer is not None and self._optimizer is not optimizer):
            self._fail("there are several optimizers")
            return
        self._optimizer = optimizer
        assert self._scaler is not None
        self._scaler.unscale_(optimizer)

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._is_stepping = True
        if self._gradients == "none":
            if self._acts:
                self._fail("the optimizer steps with no backward before it, as with a closure")
            return
        if self._acts:
            self._applied("step")
        if self._gradients == "scaled":
            self._unscale(optimizer)
        elif optimizer is not self._optimizer:
            self._fail("there are several optimizers")
        if self.has_failed:
            return
        if not type(optimizer).step.__module__.startswith("torch.optim."):
            self._fail(f"{type(optimizer).__name__} is no optimizer of torch")
            return
        assert self._scaler is not None
        # A fused optimizer would unscale in its own kernel, and need no read here: the patch has it so, and is no slower.
        overflows = self._scaler._found_inf_per_device(optimizer)
        if not overflows:
            self._fail("the optimizer that steps has no gradients")
        elif sum(each.item() for each in overflows.values()):
            self._hold_back(optimizer)

    def _hold_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Optimizers of torch leave a weight without a gradient, and its state, as they are.

        The step is still seen to end, so that what is counted by steps is the same with and without fp16.
        """
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._held_back.append((weight, weight.grad))
                    weight.grad = None

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._is_stepping = False
        if self._gradients == "none":
            return
        self._gradients = "none"
        while self._held_back:
            weight, gradient = self._held_back.pop()
            weight.grad = gradient
        if not self.has_failed:
            assert self._scaler is not None
            self._scaler.update()

    def _watch_reads(self, is_watched: bool) -> None:
        """Have every read or write of `Tensor.grad` seen while gradients are scaled; it costs nothing in between."""
        if is_watched and not self.has_failed:
            torch.Tensor.grad = property(self._read, self._write, self._write)  # type: ignore[assignment]
        elif "grad" in vars(torch.Tensor):
            del torch.Tensor.grad

    def _read(self, tensor: torch.Tensor) -> Any:
        self._touched()
        return tensor.grad

    def _write(self, tensor: torch.Tensor, *value: Any) -> None:
        self._touched()
        tensor.grad = value[0] if value else None

    def _touched(self) -> None:
        """Unscale before the first look at gradients: by the script, or by what of hotloop watches its step."""
        self._watch_reads(False)
        if self._acts and not sys._getframe(2).f_code.co_filename.startswith(_OWN):
            self._applied("read")
        self._unscale(self._only_optimizer())
