"""When a step ends, told from what the script calls.

- `optimizer`: with the update of the optimizer that carries the clock: the first to step, or, once
  several are seen, the one that steps most rarely: their period is the step.
- `backward`: a script without any optimizer steps with each pass backward after a forward.
- `forward`: without a pass backward either, with each outermost forward in grad mode.
- `explicit`: where the script calls `hotloop.step()`, and nowhere else from then on.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType

import torch

from hotloop.probe.attach.watch import Watch
from hotloop.probe.foreign_process import describe_optimizer, device_of, parameter_dtypes

BACKWARDS_WITHOUT_UPDATE = 200
"""So many with an optimizer that never steps: it does not update these parameters."""
FORWARDS_WITHOUT_BACKWARD = 50
MOST_UPDATES = 20
"""Of the optimizer that steps most often, in one step; an even rarer one does something else."""
DECIDED_BY = 5 * MOST_UPDATES
"""Which of several optimizers carries the clock is settled after so many updates."""
_STEP_FRAME = "Optimizer.profile_hook_step.<locals>.wrapper"


class Boundary:
    """Watches updates, passes backward and forward, and ends steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.rule = "undecided"
        self.optimizers_made = 0
        self.described: str | None = None
        self.dtypes: tuple[str, ...] = ()
        self.device = torch.device("cpu")
        self._carrier: weakref.ref[torch.optim.Optimizer] | None = None
        self._updates: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )
        self._open: list[tuple[weakref.ref[torch.optim.Optimizer], int]] = []
        self.backwards_seen = 0
        self._backwards = 0
        self._forwards = 0
        self._went_forward = False

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step begins. It may hold whole passes forward and backward (closures)."""
        watch = self._watch
        if not watch.here():
            return
        watch.hooks += 2  # this one, and the one after it
        if any(held() is optimizer for held, _ in self._open) and _running_steps() < 2:
            # The one before never ended: it raised. Else: a subclass that calls the step it overrides.
            watch.clock.leave(self._open[0][1])
            self._open.clear()
        self._open.append((weakref.ref(optimizer), watch.enter("optimizer")))

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """It has updated its parameters."""
        watch = self._watch
        if not watch.active:
            return
        if not watch.here():
            if not watch.claimed:
                self._updated(optimizer)  # training happens on another thread than the import
            return
        if self._open and self._open[-1][0]() is optimizer:
            watch.leave(self._open.pop()[1])
            if any(held() is optimizer for held, _ in self._open):
                return  # the overriding step has not ended yet
        self._updated(optimizer)

    def went_backward(self) -> None:
        """An outermost pass backward has ended."""
        watch = self._watch
        watch.backwards += 1
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
            watch.notes.append("no optimizer of torch steps: a step ends with each pass backward")
        if went_forward or not watch.step:
            watch.end_step()

    def went_forward(self, module: torch.nn.Module) -> None:
        """An outermost forward in grad mode has ended."""
        self._went_forward = True
        if self.rule not in ("undecided", "forward") or _is_loss(module):
            return
        if self.rule == "undecided":
            self._forwards += 1
            if self._backwards or self._forwards < FORWARDS_WITHOUT_BACKWARD:
                return
            self.rule = "forward"
            self._watch.notes.append("nothing goes backward: a step ends with each forward pass")
        self._watch.end_step()

    def explicit(self) -> None:
        """The script says that a step ends here."""
        if self.rule != "explicit":
            if self._watch.step:
                self._switch("explicit", "from its first call on, `hotloop.step()` ends the steps")
            self.rule = "explicit"
        self._watch.end_step()

    def _updated(self, optimizer: torch.optim.Optimizer) -> None:
        if self.rule == "explicit":
            self._describe(optimizer)
            return
        if self.rule in ("backward", "forward"):
            self._switch(
                "optimizer", f"{self.rule} passes were taken for steps, until an optimizer stepped"
            )
        self.rule = "optimizer"
        self._updates[optimizer] = self._updates.get(optimizer, 0) + 1
        carrier = self._carrier() if self._carrier is not None else None
        if carrier is None:
            self._carrier, carrier = weakref.ref(optimizer), optimizer
        elif carrier is not optimizer and self._is_rarer(optimizer, carrier):
            self._carrier, carrier = weakref.ref(optimizer), optimizer
            self._watch.restart(
                "steps were counted by an optimizer that steps several times in one"
            )
        if carrier is optimizer:
            self._describe(optimizer)
            self._watch.end_step()

    def _is_rarer(self, optimizer: torch.optim.Optimizer, carrier: torch.optim.Optimizer) -> bool:
        """Whether it steps once where the carrier steps twice or more; decided early on."""
        own = self._updates[optimizer]
        return (
            own >= 2
            and 2 * own <= self._updates.get(carrier, 0) <= MOST_UPDATES * own
            and self._watch.step <= DECIDED_BY
        )

    def _describe(self, optimizer: torch.optim.Optimizer) -> None:
        if self.described is None:  # now: it may be gone when the census is written
            self.described = describe_optimizer(optimizer)
            self.dtypes = parameter_dtypes(optimizer)
            self.device = device_of(optimizer)

    def _switch(self, rule: str, why: str) -> None:
        self.rule = rule
        self._watch.restart(why)


def _is_loss(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.modules.loss._Loss)


def _running_steps() -> int:
    """How many optimizers' steps are under way on this thread, as its frames tell."""
    frame: FrameType | None = sys._getframe(1)
    found = 0
    while frame is not None:
        found += frame.f_code.co_qualname == _STEP_FRAME
        frame = frame.f_back
    return found
