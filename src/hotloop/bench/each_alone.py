"""What each value brings by itself: every one against the command as given, never on top of another, none left out for being slow.

```
losses of each value, and pairs up to the first look    a few values at a time, the likeliest first: in rounds of a process of
                                                        the command as given and one of each, so that they share the former
pairs up to the second look, the third                  of those that a look did not decide, as long as the budget lasts
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Parity
from hotloop.core.ledger import Ledger
from hotloop.doctor.compared_arms import unfinished_runs
from hotloop.doctor.fix_costs import with_costs, with_memory
from hotloop.doctor.fix_status import judged, longer
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_costs import SLACK, budget_text
from hotloop.judge.compare import looks_faster
from hotloop.judge.looks import LOOKS, should_stop
from hotloop.judge.worth import PAIRS
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.measure import MEASUREMENT_FILE
from hotloop.trial.session import SessionResult
from hotloop.tune.campaign import NO_TIME, OTHERWISE, ValueTrials
from hotloop.tune.options import AUTO
from hotloop.tune.runner import OptionRunner

TOGETHER = 5
"""Values of a round. More save little, and are farther from its process of the command as given."""
STARTS = 0.5
"""Share of the seconds that compiling takes in a process that finds what was compiled before it."""


class EachAlone(ValueTrials):
    """All trials of one call of `hotloop bench effectiveness CONFIG`."""

    def __init__(
        self, runner: OptionRunner, rounds: Sequence[Sequence[Fix]], again: Callable[[str], str]
    ) -> None:
        super().__init__(runner, rounds, again)
        self._results: dict[str, SessionResult] = {}
        self._parities: dict[str, Parity] = {}
        self._wanted: dict[str, int] = {}
        """Pairs that each value should have by now."""

    @staticmethod
    def planned(num_values: int, num_options: int) -> tuple[int, int]:
        return LOOKS[0] * (num_values + math.ceil(num_values / TOGETHER)) // 2, 2 + num_values

    def all(self) -> Ledger:
        self._check_budget(losses=0 if self._is_begun() else 2)
        self.runner.report(fixes=tuple(value.name for value in self.values))
        groups = self._groups()
        self._say_what_it_takes(groups)
        for look in LOOKS:
            if look > (self.runner.most_pairs or look):
                break
            for group in groups:
                going = [value for value in group if self._goes_on(value, look)]
                for value in going[: self._num_paid(going, look)]:
                    self._caught(value, self._learn)
                learnt = [each for each in going if each.name in self._parities]
                for place, value in enumerate(going):
                    others = [each for each in going[place + 1 :] if each in learnt]
                    self._caught(
                        value, partial(self._begin, others=others, group=group, up_to=look)
                    )
        return self._ledger()

    def _groups(self) -> list[list[Fix]]:
        """Values that share rounds: they need as many steps."""
        found = []
        for _, same in groupby(self.values, lambda value: self.runner.plan_for([value]).num_steps):
            values = list(same)
            found += [values[at : at + TOGETHER] for at in range(0, len(values), TOGETHER)]
        return found

    def _say_what_it_takes(self, groups: Sequence[Sequence[Fix]]) -> None:
        takes = {
            value.name: self._expected_s(value, len(group), LOOKS[0])
            for group in groups
            for value in group
        }
        rows = ", ".join(f"{name} {budget_text(seconds)}" for name, seconds in takes.items())
        self.runner.warn(
            f"{LOOKS[0]} pairs of each take about {budget_text(math.fsum(takes.values()))} more: {rows}; "
            "what they do not decide gets more pairs, as long as the budget lasts"
        )

    def _expected_s(self, value: Fix, num_together: int, look: int) -> float:
        """Seconds for the losses of a value and pairs up to a look that are not made yet, where so many share a round."""
        runner, arm = self.runner, self.runner.with_fixes(value.name, [value])
        num_losses = unfinished_runs(runner, arm, [value])
        start_s = max(
            (CATALOGUE[each].start_s for each in value.value[0].known.techniques), default=0
        )
        pairs_s = runner.needed_s(look, reserved=False, place=self._found(value))
        process_s = runner.costs.process_s(runner.plan_for([value]).num_steps)
        own_s = num_losses * (runner.costs.process_s(runner.loss_steps) + start_s)
        return own_s + pairs_s / 2 * (1 + 1 / num_together + STARTS * start_s / process_s)

    def _num_paid(self, going: Sequence[Fix], look: int) -> int:
        """How many of them the budget holds, the likeliest first: better all pairs of these than a few of each."""
        num = len(going)
        while num > 1 and self.runner.left_s < sum(
            self._expected_s(each, num, look) for each in going[:num]
        ):
            num -= 1
        return num

    def _found(self, value: Fix) -> str:
        return f"{self._place(value)}-{'?' * 16}"

    def _is_begun(self) -> bool:
        """Whether an earlier call compared losses."""
        return any(self.runner.place_of("").glob(f"*/losses-*/{MEASUREMENT_FILE}"))

    def _goes_on(self, value: Fix, look: int) -> bool:
        if look == LOOKS[0]:
            return True
        verdict = self._results[value.name].verdict if value.name in self._results else None
        return (
            verdict is not None
            and self.tried[value.name].status != "failed"
            and not should_stop(verdict, verdict.num_pairs)
            # More pairs could only say how much slower.
            and (verdict.num_pairs < PAIRS or looks_faster(verdict))
        )

    def _learn(self, value: Fix) -> None:
        """Compare its losses, if they were not yet and the budget holds them."""
        runner, arm = self.runner, self.runner.with_fixes(value.name, [value])
        num_losses = unfinished_runs(runner, arm, [value])
        needed_s = num_losses * runner.costs.process_s(runner.loss_steps)
        if value.name in self._parities or (num_losses and not runner.pays_for(needed_s)):
            return
        try:
            self._parities[value.name] = self._parity([value])
        except CommandFailed as error:
            if not runner.was_cut_off(error):
                raise

    def _begin(self, value: Fix, others: Sequence[Fix], group: Sequence[Fix], up_to: int) -> None:
        before = self._results.get(value.name)
        if value.name in self.tried and before is None:
            return  # it failed
        num_pairs = 0 if before is None else before.verdict.num_pairs
        self._wanted[value.name] = up_to
        needed_s = self.runner.needed_s(num_pairs + 1, reserved=False, place=self._found(value))
        try:
            is_paid = not needed_s or self.runner.pays_for(needed_s)
            if value.name in self._parities and is_paid:
                self._measure(value, others, group, up_to)
        except CommandFailed as error:
            if not self.runner.was_cut_off(error):
                raise
        if value.name not in self._results:
            self._tell(value, "not_tried", f"{NO_TIME} before its first pair")

    def _measure(self, value: Fix, others: Sequence[Fix], group: Sequence[Fix], up_to: int) -> None:
        runner, parity = self.runner, self._parities[value.name]
        result = runner.timed(
            [], [value], parity, others=others, group=group, pairs_now=up_to, reserved=False
        )
        verdict = replace(result.verdict, parity=longer(parity, result))
        result = self._results[value.name] = replace(result, verdict=verdict)
        status, why = judged(result, value, is_live=False)
        self._tell(value, status, f"{NO_TIME}: {why}" if status == "stopped" else why, result)
        entry = self.tried[value.name]
        if parity is not OTHERWISE:
            entry = with_costs(runner, value, entry, result)
        self.tried[value.name] = with_memory(entry, result.pairs)

    def _ledger(self) -> Ledger:
        runner = self.runner
        more_s = SLACK * math.fsum(
            self._expected_s(value, TOGETHER, self._wanted[value.name])
            for value in self.values
            if self._is_unpaid(value)
        )
        whole = self._results.get(AUTO)
        is_kept = whole is not None and self.tried[AUTO].status == "kept"
        return runner.ledger(
            [self.tried[each.name] for each in self.values if each.name in self.tried],
            [AUTO] if is_kept else [],
            whole,
            not_comparable=self._comparisons.not_comparable if self._comparisons else None,
            continue_with=self.again(budget_text(more_s)) if more_s else None,
        )

    def _is_unpaid(self, value: Fix) -> bool:
        """Whether more pairs would be made, had the budget held them."""
        if (result := self._results.get(value.name)) is None:
            return self.tried[value.name].status != "failed"
        is_short = result.verdict.num_pairs < self._wanted[value.name]
        return is_short and self._goes_on(value, LOOKS[-1])
