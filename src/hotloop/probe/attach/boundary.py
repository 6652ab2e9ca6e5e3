"""When a step ends, told from what the script calls.

- `optimizer`: with an update, as `StepRule` says.
- `backward`: a script without any optimizer steps with each pass backward after a forward, or, where
  no module ever goes forward, with each.
- `forward`: without a pass backward either, with each outermost forward in grad mode.
- `explicit`: where the script calls `hotloop.step()`, and nowhere else from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim import Optimizer

from hotloop.core.census import NO_OPTIMIZER, SEVERAL_UPDATES
from hotloop.probe.attach.sites import Place, caller, outward
from hotloop.probe.attach.watch import Watch
from hotloop.probe.foreign_process import describe_optimizer, device_of, parameter_dtypes
from hotloop.probe.step_rule import Ends, StepRule

BACKWARDS_WITHOUT_UPDATE = 200
"""So many with an optimizer that never steps: it does not update these parameters."""
FORWARDS_WITHOUT_BACKWARD = 50
_STEP_FRAME = "Optimizer.profile_hook_step.<locals>.wrapper"


class Boundary:
    """Watches updates, passes backward and forward, and ends steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.rule = "undecided"
        kinds = [Optimizer]
        for kind in kinds:
            kinds += kind.__subclasses__()
        self.optimizers_made = sum(hasattr(kind.step, "hooked") for kind in kinds)
        """So far. Before this process was watched, one of each class whose `step` torch wrapped: it does so with the first."""
        self.after_made: Callable[[Optimizer], None] = lambda optimizer: None
        self.described: str | None = None
        self.constructed: Place | None = None
        """The place at which the optimizer was constructed that is described."""
        self.dtypes: tuple[str, ...] = ()
        self.device = torch.device("cpu")
        self.steps = StepRule()
        self._made: WeakKeyDictionary[Optimizer, Place | None] = WeakKeyDictionary()
        self.nests = False
        self._open: list[tuple[ref[Optimizer], int]] = []
        self.backwards_seen = 0
        self._backwards = 0
        self._forwards = 0
        self._went_forward = False
        self._has_modules = False
        self._weights = Weights()

    def made(self, optimizer: Optimizer) -> None:
        """It has been constructed."""
        self.optimizers_made += 1
        self._made[optimizer] = self._watch.sites.place(caller())
        self.after_made(optimizer)

    def optimizers(self) -> list[Optimizer]:
        """Those that are still there."""
        return list(self._made)

    def before_update(self, optimizer: Optimizer) -> None:
        """An optimizer's step begins. It may hold whole passes forward and backward (closures)."""
        watch = self._watch
        if not watch.here():
            return
        if self._open and self._is_open(optimizer):
            self._drop_unfinished(running=1)  # more: a subclass that calls the step it overrides
        self._open.append((ref(optimizer), watch.enter("optimizer")))

    def after_update(self, optimizer: Optimizer) -> None:
        """It has updated its parameters."""
        watch = self._watch
        if not watch.active:
            if watch.other is not None:
                watch.other.updated(optimizer)
            return
        if not watch.here():
            if not watch.claimed:
                self._updated(optimizer)  # training happens on another thread than the import
            return
        if self._open and self._open[-1][0]() is optimizer:
            watch.leave(self._open.pop()[1])
            if self._open and self._is_open(optimizer):
                self.nests = True
                return  # the overriding step has not ended yet
        self._updated(optimizer)

    def _drop_unfinished(self, *, running: int = 0) -> None:
        """An update that raised never ended; a closure's is under way."""
        # As the frames of this thread tell: how many optimizers' steps are under way.
        steps = sum(each.f_code.co_qualname == _STEP_FRAME for each in outward(sys._getframe()))
        if steps <= running:
            self._watch.leave(self._open[0][1])
            self._open.clear()

    def _is_open(self, optimizer: Optimizer) -> bool:
        return any(held() is optimizer for held, _ in self._open)

    def went_backward(self, loss: Any) -> None:
        """An outermost pass backward from `loss` has ended."""
        watch = self._watch
        if self._open:
            self._drop_unfinished()
        watch.now.backwards += 1
        self.backwards_seen += 1
        self._forwards = 0
        if self.rule in ("optimizer", "explicit"):
            return
        went_forward, self._went_forward = self._went_forward, False
        if self.rule == "forward":
            self._switch("backward", "forward passes were taken for steps, until one went backward")
        if self.rule == "undecided":
            self._backwards += 1
            if self.optimizers_made and self._backwards < BACKWARDS_WITHOUT_UPDATE:
                return
            self.rule = "backward"
            watch.notes.append(NO_OPTIMIZER)
            leaves = leaves_of(loss)
            self._weights.keep(leaves)
            self.device = next((each.device for each in leaves), self.device)
        if went_forward or not self._has_modules or not watch.step:
            watch.end_step()

    def went_forward(self, module: torch.nn.Module) -> None:
        """An outermost forward in grad mode has ended."""
        if self._open:
            self._drop_unfinished()
        self._went_forward = True
        if not self._has_modules:
            self._has_modules = True
            if self.rule == "backward":
                self._watch.restart("each pass backward was a step, until a module went forward")
        is_loss = isinstance(module, torch.nn.modules.loss._Loss)
        if self.rule not in ("undecided", "forward") or is_loss or self._watch.is_child:
            return
        if self.rule == "undecided":
            self._forwards += 1
            if self._backwards or self._forwards < FORWARDS_WITHOUT_BACKWARD:
                return
            self.rule = "forward"
            self._weights.keep(module.parameters())
            self._watch.notes.append("nothing goes backward: a step ends with each forward pass")
        self._watch.end_step()

    def updates(self) -> bool:
        """Whether the steps so far were seen to update weights, by an optimizer or by the script itself."""
        if not self._watch.updates and self._weights.have_changed():
            self._watch.saw_updates()
        return self._watch.updates

    def explicit(self) -> None:
        """The script says that a step ends here."""
        watch = self._watch
        if not watch.active or (watch.claimed and not watch.here()):
            return
        if self.rule != "explicit":
            if watch.step:
                self._switch("explicit", "from its first call on, `hotloop.step()` ends the steps")
            self.rule = "explicit"
            watch.saw_updates()
        self.steps.called()
        watch.end_step()

    def _updated(self, optimizer: Optimizer) -> None:
        ends = self.steps.updated(optimizer)
        if self.rule != "optimizer":
            if self.rule == "explicit":
                self._describe(optimizer)
                return
            if self.rule != "undecided":
                self._switch(
                    "optimizer",
                    f"{self.rule} passes were taken for steps, until an optimizer stepped",
                )
            self.rule = "optimizer"
        if not self._watch.updates:
            self._watch.saw_updates()
        if ends is Ends.NOTHING:
            return
        if ends is Ends.STEP_OF_ANOTHER:
            self._watch.restart(
                SEVERAL_UPDATES,
                made=self.steps.steps - 1,
            )
        elif ends is Ends.LONG_STEP:
            self._watch.tag("resumed")
            self._watch.notes.append("one optimizer stepped no more, another one took over")
        self._describe(optimizer)
        self._watch.end_step()

    def _describe(self, optimizer: Optimizer) -> None:
        if self.described is None:  # now: it may be gone when the census is written
            self.described = describe_optimizer(optimizer)
            self.constructed = self._made.setdefault(optimizer, None)
            self.dtypes = parameter_dtypes(optimizer)
            self.device = device_of(optimizer)

    def _switch(self, rule: str, why: str) -> None:
        self.rule = rule
        if NO_OPTIMIZER in self._watch.notes:
            self._watch.notes.remove(NO_OPTIMIZER)
        self._watch.restart(why)


MOST_TENSORS, MOST_VALUES = 8, 64
MOST_NODES = 2000
"""Nodes of a graph that are visited to find its leaves."""


class Weights:
    """The first values of a few weights, to see whether a script that steps no optimizer of torch changes them."""

    def __init__(self) -> None:
        self._kept: list[tuple[ref[torch.Tensor], torch.Tensor]] = []

    def keep(self, weights: Iterable[torch.Tensor]) -> None:
        """Remember these."""
        learned = (each for each in weights if each.requires_grad and each.is_floating_point())
        with torch.no_grad():
            self._kept = [
                (ref(each), _head(each).clone()) for each in islice(learned, MOST_TENSORS)
            ]

    def have_changed(self) -> bool:
        """Whether one has other values than then. Waits for the device."""
        with torch.no_grad():
            alive = [(each, kept) for held, kept in self._kept if (each := held()) is not None]
            if not alive:
                return bool(self._kept)  # others took their places
            return any(not torch.equal(_head(each), kept) for each, kept in alive)


def _head(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().reshape(-1)[:MOST_VALUES]


def leaves_of(loss: Any) -> list[torch.Tensor]:
    """The tensors that gradients of `loss` were accumulated in."""
    losses = loss if isinstance(loss, (list, tuple)) else [loss]
    waiting = [getattr(each, "grad_fn", None) for each in losses]
    seen: set[Any] = set()
    found = []
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        waiting += [each for each, _ in node.next_functions]
    return found
