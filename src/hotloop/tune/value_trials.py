"""What campaigns over values share: what they may take, what is learnt with a value, what became of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Parity, Status
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.memory_use import is_for_memory
from hotloop.doctor.budget import BudgetTooSmall, num_losses
from hotloop.doctor.fix_status import tried_fix
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparisons
from hotloop.doctor.trial_costs import MARGIN, budget_text
from hotloop.doctor.trial_reports import WritesOutside
from hotloop.doctor.trial_runner import BASELINE, OutOfBudget
from hotloop.judge.looks import LOOKS
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.session import SessionResult
from hotloop.tune.options import Option
from hotloop.tune.runner import WITHOUT, OptionRunner, arm_name

OTHERWISE = Parity("not_checked", "changes_training", reason="it trains otherwise on purpose")
NO_TIME = "out of budget"
STARTS = 0.5
"""Share of the seconds that compiling takes in a process that finds what was compiled before it."""


class ValueTrials(ABC):
    """Trials of values, in rounds."""

    def __init__(
        self, runner: OptionRunner, rounds: Sequence[Sequence[Fix]], again: Callable[[str], str]
    ) -> None:
        """rounds: values, in the order in which they are tried. again: the command that goes on with such a budget."""
        self.runner, self.rounds, self.again = runner, rounds, again
        self.values = [value for each in rounds for value in each]
        self.tried: dict[str, TriedFix] = {}
        self.stack: list[Fix] = []
        self._too_little_memory: set[str] = set()
        """Names of those that failed for it."""
        self._comparisons: LossComparisons | None = None

    @staticmethod
    @abstractmethod
    def planned(num_values: int, num_options: int) -> tuple[int, int]:
        """Pairs, and runs for losses, that a first budget should hold: fewer steps are counted where it does not."""

    @abstractmethod
    def all(self) -> Ledger:
        """Raises `BudgetTooSmall`, and what trials of the command as given raise."""

    def _check_budget(self, losses: int = 0) -> None:
        """Raises `BudgetTooSmall` where it does not hold a pair, and so many runs for losses before it."""
        runner = self.runner
        pair_s = runner.needed_s(1, losses=losses, reserved=False, place="*")
        if pair_s > runner.left_s:
            least = budget_text((runner.budget_s or 0.0) - runner.left_s + MARGIN * pair_s)
            before = " with those for its losses" if losses else ""
            raise BudgetTooSmall(
                f"a pair of runs{before} takes about {pair_s:.0f} s here, more than is left of the budget",
                do=f"go on with `{self.again(least)}`, or more: the command is not examined again",
            )

    def _parity(self, asked: Sequence[Fix]) -> Parity:
        """Whether the command learns the same with all that is kept and these, but for what changes the training."""
        if any(map(changes_training, asked)):
            return OTHERWISE
        same = [v for v in (*self.stack, *asked) if not changes_training(v)]
        same = list(dict.fromkeys(same))
        if self._comparisons is None:
            self._comparisons = LossComparisons(self.runner, same)
        return self._comparisons.of("-".join(each.name for each in same), same).parity

    def _place(self, value: Fix) -> str:
        """Begins the name of where its pairs on top of what is kept lie."""
        return arm_name("-".join(each.name for each in (*self.stack, value)))

    def _caught(self, value: Fix, trying: Callable[[Fix], None]) -> None:
        """A value that fails is told, in the script's own words, and the rest goes on."""
        self.runner.report(current=value.name)
        try:
            trying(value)
        except WritesOutside as error:
            self._tell(value, "failed", f"it writes outside the working directory: {error.path}")
        except OutOfBudget:
            self._tell_open(value)
        except CommandFailed as error:
            if error.arm == BASELINE and not any(each.verdict for each in self.tried.values()):
                raise
            self._tell(value, "failed", how_failed(error), do=error.do or "")
            if error.arm not in (BASELINE, WITHOUT) and is_for_memory(error):
                self._too_little_memory.add(value.name)
        tried = tuple(self.tried[v.name] for v in self.values if v.name in self.tried)
        self.runner.report(tried=tried, current=None, pair=None, process="")

    def _tell_open(self, value: Fix) -> None:
        """The budget ended before this was measured to its end."""
        self._tell(value, "not_tried", f"{NO_TIME} before its first pair")

    def _tell(
        self,
        value: Fix,
        status: Status,
        why: str,
        result: SessionResult | None = None,
        do: str = "",
    ) -> None:
        option, text = value.value
        entry = tried_fix(value, status, why, result, details=do or option.details(text))
        place = str(result.directory.relative_to(self.runner.directory)) if result else None
        self.tried[value.name] = replace(entry, value=text, directory=place)

    def _needed_s(self, pairs: int, name: str, losses: float = 0.0) -> float:
        """Seconds of these, of which some may be finished in the place of this name, with so many runs for losses, and those that
        confirm what is kept."""
        reserved = self.runner.must_confirm
        place = f"{name}-{'?' * 16}"
        return self.runner.needed_s(pairs, losses=losses, reserved=reserved, place=place)

    def _pays(self, pairs: int, name: str, losses: float = 0.0) -> bool:
        """Whether the budget holds these."""
        return self.runner.pays_for(self._needed_s(pairs, name, losses))

    def proof_s(self, value: Fix) -> float:
        """Seconds of what proves a value that is faster: losses, pairs up to the first look, and fresh ones unless it is the only one."""
        return self.runner.needed_s(
            LOOKS[0],
            losses=self._num_losses(value),
            slower_start_s=STARTS * start_s_of(value.value[0]),
            reserved=self.rounds[0] != [value],
            place=f"{self._place(value)}-{'?' * 16}",
        )

    def _num_losses(self, value: Fix) -> float:
        """Runs for losses that it may still take."""
        return 0.0 if changes_training(value) else num_losses(self.runner, value)


def how_failed(error: CommandFailed) -> str:
    """In the process's own words, and that it was not that of a value where it was not."""
    why = error.what.rpartition(f"`{error.arm}` ")[2]
    why = f"the command as given failed beside it: {why}" if error.arm == BASELINE else why
    last = next(reversed((error.do or "").strip().splitlines()), "").strip()
    return f"{why}: {last}"


def start_s_of(option: Option) -> float:
    """Seconds that a value is known to take before its first fast step; another batch is not known to take any."""
    known = [CATALOGUE[each].start_s for each in option.known.techniques]
    return 0.0 if option.known.scales else max(known, default=0.0)


def changes_training(value: Fix) -> bool:
    return value.technique.parity_class == "changes_training"
