"""Hooks around the passes of a step: forward, evaluation, backward, update; and what the probe itself costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hotloop.probe import entry
from hotloop.probe.attach.boundary import Boundary
from hotloop.probe.attach.evaluation_watch import EvaluationWatch
from hotloop.probe.attach.step_calls import Step
from hotloop.probe.attach.watch import RESTS, Watch
from hotloop.probe.background import Background
from hotloop.probe.phases import cost_s
from hotloop.probe.scaled_loss import ScaledLoss

REPEATS = 100
_OUTERMOST = frozenset({"unattributed", "optimizer"})
"""Inside which a module call is a pass of its own. Elsewhere it is part of what is open: a block
that is computed again in `backward`, a transform in a dataset."""
LOOKS = 64
EVERY = 16
"""What the model is given is looked at in so many steps, then in one of so many: shapes that come up
later are rare."""


def watch_passes(
    watch: Watch,
    boundary: Boundary,
    evaluations: EvaluationWatch,
    *,
    saw_forward: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    saw_backward: Callable[[], None],
) -> None:
    """Hook this process. saw_forward: gets the arguments of outermost forwards in grad mode."""

    def went_forward(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if evaluations.passes:
            evaluations.over()
        evaluations.in_eval_mode |= not module.training
        if watch.step < LOOKS or watch.step % EVERY == 0:
            watch.tried(evaluations.trains, module)
            watch.tried(saw_forward, module, args, kwargs)
        boundary.went_forward(module)

    def updated(optimizer: torch.optim.Optimizer) -> None:
        # A step that is left out has to cost next to nothing.
        if watch.resting > 1 and boundary.steps.is_usual(optimizer):
            watch.left_out()
        else:
            watch.guarded(boundary.after_update, optimizer)

    def making(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        if watch.active:
            watch.tried(boundary.made, optimizer)
        return result

    original = torch.nn.Module.__call__
    call = watched_call(watch, original, evaluations, went_forward)
    # Put where `entry.around_call` would: but with one frame, since every submodule passes here.
    # While tracing, dynamo takes it for the original: it is loaded later.
    call.__wrapped__ = original  # type: ignore[attr-defined]
    call.__qualname__ = original.__qualname__
    call.__module__ = original.__module__
    torch.nn.Module.__call__ = call  # type: ignore[method-assign]
    entry.put_back(torch.nn.Module, "__call__", call, original)
    _watch_backward(watch, boundary, evaluations, saw_backward)
    entry.before_step(
        lambda optimizer: watch.resting or watch.guarded(boundary.before_update, optimizer)
    )
    entry.after_step(updated)
    entry.around_call(torch.optim.Optimizer, "__init__", making)


def watched_call(
    watch: Watch,
    original: Callable[..., Any],
    evaluations: EvaluationWatch,
    done: Callable[[torch.nn.Module, Any, Any], None] | None = None,
) -> Callable[..., Any]:
    """`Module.__call__` on the clock. done: told of each outermost forward in grad mode, and its arguments."""
    opened = watch.clock.opened
    is_compiling: Callable[[], bool] = torch.compiler.is_compiling
    grad_enabled = torch.is_grad_enabled
    # What torch's own does, without its frame: a model may use up the depth that Python allows.
    is_torchs = original is getattr(torch.nn.Module, "_wrapped_call_impl", None)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        if opened[-1] not in _OUTERMOST:
            watch.now.passed += 1
            if is_torchs and self._compiled_call_impl is None:
                return self._call_impl(*args, **kwargs)
            return original(self, *args, **kwargs)
        grad = grad_enabled() and not watch.eval_batch
        phase = "forward" if grad else evaluations.phase_of(self)
        depth = watch.enter(phase)
        if depth < 0:
            return original(self, *args, **kwargs)
        if phase == "eval":
            evaluations.begin()
        try:
            result = original(self, *args, **kwargs)
        finally:
            watch.leave(depth)
            if phase == "eval":
                evaluations.end()  # also of a pass that raises: what the script does then may evaluate on
        if grad and done is not None:
            watch.guarded(done, self, args, kwargs)
        return result

    def release() -> None:
        nonlocal is_compiling
        is_compiling = entry.always

    entry.at_end(release)
    return __call__


def _watch_backward(
    watch: Watch, boundary: Boundary, evaluations: EvaluationWatch, saw_backward: Callable[[], None]
) -> None:
    read = torch._C.TensorBase.item
    scaled = ScaledLoss()
    scaled.install()

    def backward(original: Any, *args: Any, **kwargs: Any) -> Any:
        if not watch.here() or watch.clock.innermost in ("backward", "data_wait", RESTS):
            return original(*args, **kwargs)
        result = watch.timed("backward", original, args, kwargs)
        watch.guarded(_after_backward, args)
        return result

    def _after_backward(args: tuple[Any, ...]) -> None:
        if evaluations.passes:
            evaluations.over()
        loss = args[0] if args else None
        # On a device it would have to be waited for.
        if isinstance(loss, torch.Tensor) and loss.is_cpu and loss.numel() == 1:
            value = read(scaled.unscaled(loss))
            if isinstance(value, (int, float)):  # no complex number
                watch.now.losses.append(value)
        saw_backward()
        boundary.went_backward(loss)

    entry.around_method(torch.Tensor, "backward", backward)
    entry.around_call(torch.autograd, "backward", backward)


class Cost:
    """Cost of a clock read, of what only passes through, of the probe's own work and threads."""

    def __init__(self) -> None:
        self.beside_s: Callable[[], float] = lambda: 0.0
        """CPU seconds so far of a thread that is none of the probe's, and is there for it."""
        self.read_s: float | None = None
        self._pass_s = 0.0
        self.threads: tuple[Background, ...] = ()
        """The probe's own."""
        self._threads_told = self._beside_s = 0.0
        self.own_s = self.all_s = 1e-9
        """Work on the thread that steps, and that with its clock reads and what passed through, in steps that count."""
        self._spent_s = self._passed_s = 0.0
        self.end_s = 0.0
        """What its end took in a loop that goes on."""
        self.can_be_less = False
        """Steps may be left out, so that a longer loop costs less."""

    @property
    def share(self) -> float | None:
        """All that the probe cost in the steps after the first, in warm-up and profile too, over their time."""
        return self._spent_s / self._passed_s if self.read_s and self._passed_s else None

    @property
    def beside_share(self) -> float:
        """Of its threads alone."""
        return self._beside_s / self._passed_s if self._passed_s else 0.0

    def begin(self) -> None:
        """The first step has ended: what a thread took until then belongs to no step."""
        self._threads_told = sum(each.cpu_s for each in self.threads) + self.beside_s()

    def measure(self, directory: Path) -> None:
        """Take a few milliseconds to measure; half of a watched call that does nothing is one read."""
        watch = Watch(directory)

        def nothing(module: Any) -> None:
            return None

        call = watched_call(watch, nothing, EvaluationWatch(watch))
        with torch.enable_grad():
            self.read_s = cost_s(lambda: call(None), REPEATS) / 2
            depth = watch.enter("forward")
            self._pass_s = cost_s(lambda: call(None), REPEATS)
        watch.leave(depth)

    def extra_reads(self, steps: Sequence[Step]) -> list[int]:
        """What the rest of the probe cost in each of these steps, in clock reads.

        What its threads used since the last time goes to the last step.
        """
        if not self.read_s or not steps:
            return [0] * len(steps)
        threads = sum(each.cpu_s for each in self.threads) + self.beside_s()
        beside, self._threads_told = max(threads - self._threads_told, 0.0), threads
        self._beside_s += beside
        found = []
        for step in steps:
            seconds = step.own_s + step.passed * self._pass_s
            if step.counted:
                self.own_s += step.own_s
                self.all_s += seconds + step.reads * self.read_s
            seconds += beside if step is steps[-1] else 0.0
            found.append(round(seconds / self.read_s))
            if step.step:  # the first lasts since before the training
                self._spent_s += seconds + step.reads * self.read_s
                self._passed_s += step.wall_s + step.left_out_s
        return found
