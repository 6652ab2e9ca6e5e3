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

from hotloop.core.judgement import Parity
from hotloop.core.ledger import Ledger
from hotloop.doctor.compared_arms import unfinished_runs
from hotloop.doctor.fix_costs import with_costs, with_memory
from hotloop.doctor.fix_status import judged, longer
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_costs import SLACK, budget_text
from hotloop.doctor.trial_runner import OutOfBudget
from hotloop.judge.compare import looks_faster
from hotloop.judge.looks import LOOKS, should_stop
from hotloop.judge.worth import PAIRS
from hotloop.trial.measure import MEASUREMENT_FILE
from hotloop.trial.session import SessionResult
from hotloop.tune.options import AUTO
from hotloop.tune.runner import OptionRunner
from hotloop.tune.value_trials import NO_TIME, OTHERWISE, STARTS, ValueTrials, start_s_of

TOGETHER = 5
"""Values of a round. More save little, and are farther from its process of the command as given."""


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
        losses = self.runner.place_of("").glob(f"*/losses-*/{MEASUREMENT_FILE}")
        self._check_budget(losses=0 if any(losses) else 2)
        self.runner.report(fixes=tuple(value.name for value in self.values))
        groups = self._groups()
        self._say_what_it_takes(groups)
        for look in LOOKS:
            if look > (self.runner.most_pairs or look):
                break
            for group in groups:
                going = [value for value in group if self._goes_on(value, look)]
                self._wanted |= {value.name: look for value in going}
                paid = self._paid(going, look)
                for value in paid:
                    self._caught(value, self._learn)
                learnt = [each for each in paid if each.name in self._parities]
                for place, value in enumerate(learnt):
                    measure = partial(self._measure, others=learnt[place + 1 :], group=group)
                    self._caught(value, partial(measure, up_to=look))
                for value in going:
                    if value.name not in self.tried:
                        self._tell(value, "not_tried", f"{NO_TIME} before its first pair")
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
        runner, start_s = self.runner, start_s_of(value.value[0])
        num_losses = self._num_losses(value)
        pairs_s = runner.needed_s(look, reserved=False, place=self._found(value))
        process_s = runner.costs.process_s(runner.plan_for([value]).num_steps)
        own_s = num_losses * (runner.costs.process_s(runner.loss_steps) + start_s)
        return own_s + pairs_s / 2 * (1 + 1 / num_together + STARTS * start_s / process_s)

    def _paid(self, going: Sequence[Fix], look: int) -> list[Fix]:
        """Those that the budget holds, the likeliest first: better all pairs of these than a few of each."""
        left_s, paid = self.runner.left_s, list[Fix]()
        for value in going:
            needed_s = self._expected_s(value, len(going), look)
            if not paid or needed_s <= max(left_s, 0.0):  # what is finished takes nothing
                paid.append(value)
                left_s -= needed_s
        return paid

    def _found(self, value: Fix) -> str:
        return f"{self._place(value)}-{'?' * 16}"

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

    def _num_losses(self, value: Fix) -> int:
        """Runs for losses that it still takes."""
        if value.name in self._parities:
            return 0
        return unfinished_runs(self.runner, self.runner.with_fixes(value.name, [value]), [value])

    def _learn(self, value: Fix) -> None:
        """Compare its losses, if they were not yet and the budget holds them."""
        runner = self.runner
        needed_s = self._num_losses(value) * runner.costs.process_s(runner.loss_steps)
        if value.name in self._parities or (needed_s and not runner.pays_for(needed_s)):
            return
        try:
            self._parities[value.name] = self._parity([value])
        except OutOfBudget:
            return

    def _measure(self, value: Fix, others: Sequence[Fix], group: Sequence[Fix], up_to: int) -> None:
        runner, parity = self.runner, self._parities[value.name]
        before = self._results.get(value.name)
        num_pairs = 0 if before is None else before.verdict.num_pairs
        needed_s = runner.needed_s(num_pairs + 1, reserved=False, place=self._found(value))
        if needed_s and not runner.pays_for(needed_s):
            return
        how = partial(runner.timed, others=others, group=group, pairs_now=up_to, reserved=False)
        try:
            result = how([], [value], parity)
        except OutOfBudget:
            return
        verdict = replace(result.verdict, parity=longer(parity, result))
        result = self._results[value.name] = replace(result, verdict=verdict)
        status, why = judged(result, value, is_live=False)
        self._tell(value, status, f"{NO_TIME}: {why}" if status == "stopped" else why, result)
        entry = self.tried[value.name]
        if parity is not OTHERWISE:
            entry = with_costs(runner, value, entry, result)
        self.tried[value.name] = with_memory(entry, result.pairs)

    def _ledger(self) -> Ledger:
        unpaid = [value for value in self.values if self._is_unpaid(value)]
        needed = [self._expected_s(each, TOGETHER, self._wanted[each.name]) for each in unpaid]
        for name in (each.name for each in unpaid):
            tried = self.tried[name]
            if tried.status != "rejected":  # that one is no gain is known
                self.tried[name] = replace(tried, why=f"open: {tried.why}")
        whole = self._results.get(AUTO)
        is_kept = whole is not None and self.tried[AUTO].status == "kept"
        return self.runner.ledger(
            [self.tried[each.name] for each in self.values if each.name in self.tried],
            [AUTO] if is_kept else [],
            whole,
            not_comparable=self._comparisons.not_comparable if self._comparisons else None,
            continue_with=self.again(budget_text(SLACK * sum(needed))) if unpaid else None,
        )

    def _is_unpaid(self, value: Fix) -> bool:
        """Whether more pairs would be made, had the budget held them."""
        if (result := self._results.get(value.name)) is None:
            return self.tried[value.name].status != "failed"
        is_short = result.verdict.num_pairs < self._wanted[value.name]
        return is_short and self._goes_on(value, LOOKS[-1])
