"""Which updates end a training step, the one definition that the doctor, trials and techniques share; and which process
of a rank is the one that is watched.

A step ends with an update by its *step optimizer*: the first to step, or, once several are seen, the one
that steps most rarely: their period is the step. Where its training is over and another has begun, the one
that steps then. Where the script calls `hotloop.step()`, that call alone ends steps from then on.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from weakref import WeakKeyDictionary, ref

from torch.optim import Optimizer

from hotloop.probe.foreign_process import replace_json

MOST_UPDATES = 20
"""By the optimizer that steps most often, in one step; an even rarer one does something else."""
DECIDED_BY = 5 * MOST_UPDATES
"""Steps after which no rarer optimizer becomes the step optimizer."""


class Ends(Enum):
    """What an update, or a call of `hotloop.step()`, means for the steps."""

    NOTHING = 0
    """It falls inside a step."""
    STEP = 1
    STEP_OF_ANOTHER = 2
    """A step; those before were counted by something that happens several times in one. `StepRule.steps`
    counts the new ones from the beginning."""
    LONG_STEP = 3
    """A step that holds many updates, until it was clear that another optimizer had taken over."""


class StepRule:
    """Counts the steps of one process. Tell it of every update, and of every `hotloop.step()`."""

    def __init__(self) -> None:
        self.steps = 0
        """Ended so far."""
        self.is_explicit = False
        self._step_optimizer: ref[Optimizer] | None = None
        self._num_own = 0
        """Updates by the step optimizer."""
        self._updates: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        """By the others."""
        self._alone: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        """By the others, since the step optimizer's last."""

    @property
    def is_settled(self) -> bool:
        """No rarer optimizer will become the step optimizer any more."""
        return self.steps > DECIDED_BY

    def is_usual(self, optimizer: Optimizer) -> bool:
        """Count its update, and with it a step, if it is the step optimizer."""
        held = self._step_optimizer
        if self.is_explicit or held is None or held() is not optimizer:
            return False
        self._num_own += 1
        self.steps += 1
        if self._alone:
            self._alone.clear()
        return True

    def updated(self, optimizer: Optimizer) -> Ends:
        """`optimizer` has updated its parameters."""
        if self.is_usual(optimizer):
            return Ends.STEP
        if self.is_explicit:
            return Ends.NOTHING
        current = self._step_optimizer() if self._step_optimizer is not None else None
        own = self._updates[optimizer] = self._updates.get(optimizer, 0) + 1
        if current is None:  # the first, or the one before is gone
            self._take(optimizer, own)
            self.steps += 1
            return Ends.STEP
        alone = self._alone[optimizer] = self._alone.get(optimizer, 0) + 1
        # Once where the step optimizer steps twice or more; decided early on.
        is_rarer = own >= 2 and 2 * own <= self._num_own <= MOST_UPDATES * own
        if alone == 1 and is_rarer and not self.is_settled:
            self._updates[current] = self._num_own
            self._take(optimizer, own)
            self.steps = own
            return Ends.STEP_OF_ANOTHER
        if alone > MOST_UPDATES:  # theirs can be no common period
            self._updates[current] = self._num_own
            self._take(optimizer, own)
            self.steps += 1
            return Ends.LONG_STEP
        return Ends.NOTHING

    def called(self) -> Ends:
        """The script has called `hotloop.step()`."""
        is_first, self.is_explicit = not self.is_explicit, True
        if is_first and self.steps:
            self.steps = 1
            return Ends.STEP_OF_ANOTHER
        self.steps += 1
        return Ends.STEP

    def _take(self, optimizer: Optimizer, own: int) -> None:
        self._step_optimizer, self._num_own = ref(optimizer), own
        self._alone.clear()


_WEAK = " weak"


class RankLock:
    """The lock file of a rank: who holds it is watched, others that train beside it are only counted.

    A process that updates weights takes it from one that was not seen to.
    """

    def __init__(self, directory: Path, rank: str) -> None:
        self._path = directory / f"claim-{rank}"
        self._steps = directory / f"steps-{rank}.jsonl"
        self._mine = str(os.getpid())

    def acquire(self, *, proven: bool) -> bool:
        """True where it is this process's from here on, or was already. proven: it updates weights."""
        text = self._mine + ("" if proven else _WEAK)
        try:
            with self._path.open("x") as file:
                file.write(text)
            return True
        except FileExistsError:
            held = self._read()
        except OSError:
            return False
        if held.partition(" ")[0] != self._mine:
            if not (proven and held.endswith(_WEAK)):
                return False
            self._steps.unlink(missing_ok=True)  # they were no steps of a training
        temporary = self._path.with_suffix(f".{self._mine}")
        temporary.write_text(text)
        os.replace(temporary, self._path)
        return True

    def is_held(self) -> bool:
        """True while no other process has taken it."""
        return self._read().partition(" ")[0] == self._mine

    def _read(self) -> str:
        try:
            return self._path.read_text()
        except OSError:
            return ""


class UnrankedTraining:
    """A process without a rank of its own: only its steps are counted, in `other-<pid>.json`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / f"other-{os.getpid()}.json"
        self._pid = os.getpid()
        self._rule = StepRule()
        self._num, self._written = 1, 0
        """The first was made when the update asked to be a step."""

    def updated(self, optimizer: Optimizer) -> None:
        """An optimizer of this process has stepped."""
        if os.getpid() != self._pid:
            return
        self._rule.updated(optimizer)
        self._num = 1 + self._rule.steps
        if self._num >= 2 * self._written:  # a process may be killed, and a write costs time
            self.write()

    def write(self) -> None:
        """So many so far."""
        if self._num == self._written or os.getpid() != self._pid:
            return
        self._written = self._num
        try:
            replace_json(self._path, {"steps": self._num})
        except OSError:
            pass
