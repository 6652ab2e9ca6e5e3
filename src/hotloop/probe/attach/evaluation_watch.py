"""Evaluation: passes without gradients that evaluate, and what lies between two with nothing of training.

A pass without gradients evaluates if its module is in evaluation mode, or follows a batch of a loader
that is iterated for that. Else it is a forward like others: a teacher's labels. So is one in most
steps by a module that does not train, and that of an agent that plays, in whatever mode: an environment is at hand where it
is called, and no function there evaluates. Where gradients are left on, a pass evaluates after a batch of a loader from which
nothing goes backward.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from hotloop.core.census import WITH_GRADIENTS
from hotloop.probe.attach.sites import Place, caller, outward, variables_of
from hotloop.probe.attach.watch import Watch
from hotloop.probe.foreign_process import learns

USUAL = 4
"""How many of the last 8 steps may have one: a pass without gradients that is part of more (a teacher, a rollout)
is no event that sets a step apart, and a forward like others, unless the module trains or the batch is of a loader that evaluates."""
_CALLERS = 6
"""Frames, from the one that calls the model outward, in which an environment is looked for."""
_MOST_KNOWN = 1000
_EVALUATES = re.compile(r"(?:^|_)(?:eval\w*|test\w*|valid\w*)(?:_|$)")


class EvaluationWatch:
    """Joins passes without gradients into evaluations. Runs on the thread that steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._place: Place | None = None
        self._began = 0.0
        self._ended = 0.0
        self._outside = 0.0
        """Unattributed seconds of the running step when the last pass ended."""
        self._step = -1
        self._between = 0.0
        """Seconds of the running step between its passes, in none."""
        self._first_span = 0
        self.passes = 0
        """Passes of the evaluation that is open: `over` has something to do only where there are some."""
        self.follows_batch = False
        """A loader gave batches for it."""
        self.in_eval_mode = False
        """A module in evaluation mode went forward with gradients since the last batch or pass backward."""
        self.saw_eval: Callable[[], None] = lambda: None
        self._learning: dict[int, bool] = {}
        """By the id of each module that went forward with gradients, in others, too (what is compiled, or spread over processes, may
        evaluate without what is around it): whether it has weights that learn. A teacher's do not."""
        self._of_trained = False
        """One of them made a pass of the evaluation that is open."""
        self._graded = False
        """Gradients were on in one of its passes."""
        self._recent: dict[bool, deque[int]] = {each: deque(maxlen=8) for each in (False, True)}
        """Steps that were looked at and had passes without gradients: those of what does not train, and evaluations that show as such."""
        self._playing: dict[tuple[CodeType, ...], bool] = {}

    def phase_of(self, module: Any) -> str:
        """The phase of a forward that is about to begin, without gradients or with ones that nothing needs."""
        watch = self._watch
        if not watch.here():
            return "eval"
        watch.tried(self.saw_eval)
        if not self.follows_batch and watch.tried(self._plays):
            self.over()
            return "forward"
        if module.training and not watch.evaluates:
            return "forward"
        self._of_trained = self._of_trained or self._learning.get(id(module), False)
        if not self._graded and torch.is_grad_enabled():
            # A loss may have gradients on beside a model that has not.
            self._graded = bool(watch.tried(learns, module))
        return "eval"

    def trains(self, module: torch.nn.Module) -> None:
        """It has gone forward with gradients."""
        if id(module) not in self._learning:
            self._learning.update((id(each), learns(each)) for each in module.modules())

    def _plays(self) -> bool:
        """Whether the model is called by an agent; once for each way in which it is called."""
        names = ((each, each.f_globals.get("__name__", "")) for each in outward(caller()))
        own = (each for each, name in names if not name.startswith("torch."))
        frames = list(islice(own, _CALLERS))
        way = tuple(frame.f_code for frame in frames)
        known = self._playing.get(way)
        if known is None:
            if len(self._playing) >= _MOST_KNOWN:
                self._playing.clear()
            known = any(_holds_environment(frame) for frame in frames)
            known = known and not any(_EVALUATES.search(code.co_name.lower()) for code in way)
            self._playing[way] = known
        return known

    def begin(self) -> None:
        """Book what follows as evaluation: its first forward pass, or the fetch for one, begins."""
        clock = self._watch.clock
        if not self.passes:
            self._began = clock.last
            self._place = self._watch.tried(lambda: self._watch.sites.place(caller()))
            self._first_span = self._watch.span + 1
        if not self.passes or self._step != self._watch.step:
            self._between = 0.0
        else:
            between = clock.so_far("unattributed") - self._outside
            clock.move(between, "unattributed", "eval")
            self._between += between
        self.passes += 1
        self._watch.evaluates = True

    def end(self) -> None:
        """It has been closed."""
        self._ended = self._watch.clock.last
        self._outside = self._watch.clock.so_far("unattributed")
        self._step = self._watch.step
        self._watch.span += 1

    def over(self) -> None:
        """Something of training happens: what was open is one evaluation."""
        if not self.passes:
            return
        watch = self._watch
        watch.evaluates = False
        seconds = self._ended - self._began
        evaluates = self.follows_batch or self._of_trained
        what = WITH_GRADIENTS if self._graded else "without gradients"
        self.passes, self.follows_batch, self._of_trained = 0, False, False
        watch.eval_batch = self._graded = False
        now, recent = watch.looked_at, self._recent[evaluates]
        if not recent or recent[-1] != now:
            recent.append(now)
        is_part = sum(1 for step in recent if step > now - 8) > USUAL
        if is_part and not evaluates:  # what the script does between such passes is its own
            watch.outside.extend(range(self._first_span, watch.span + 1))
            watch.clock.move(self._between, "eval", "unattributed")
            rest = seconds - self._between + 1e-6  # none of rounding stays
            watch.clock.move(rest, "eval", "forward")
            return
        watch.outside.append(watch.span)
        watch.calls.add("evaluations", what, self._place, seconds)
        if not is_part:
            watch.tag("eval")


def _holds_environment(frame: FrameType) -> bool:
    """Whether a variable there, or an attribute of `self`, can be reset and stepped, as Gym's interface has it."""
    variables = variables_of(frame)
    found = [*variables.values(), *getattr(variables.get("self"), "__dict__", {}).values()]
    return any(_is_environment(each) for each in found)


def _is_environment(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, (torch.nn.Module, torch.optim.Optimizer, type)):
        return False
    return callable(getattr(kind, "step", None)) and callable(getattr(kind, "reset", None))
