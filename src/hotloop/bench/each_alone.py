"""What each value brings by itself: every one against the command as given, never on top of another, none left out for being slow.

```
losses, and pairs up to the first look    of each value in turn, the likeliest first
pairs up to the second look, the third    of those that a look did not decide, as long as the budget lasts
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hotloop.core.errors import CommandFailed
from hotloop.core.ledger import Ledger
from hotloop.doctor.fix_costs import with_costs, with_memory
from hotloop.doctor.fix_status import judged, longer
from hotloop.doctor.fixes import Fix
from hotloop.doctor.trial_costs import SLACK, budget_text
from hotloop.judge.compare import looks_faster
from hotloop.judge.looks import LOOKS, should_stop
from hotloop.judge.worth import PAIRS
from hotloop.trial.measure import MEASUREMENT_FILE
from hotloop.trial.session import SessionResult
from hotloop.tune.campaign import NO_TIME, OTHERWISE, ValueTrials
from hotloop.tune.options import AUTO
from hotloop.tune.runner import OptionRunner


class EachAlone(ValueTrials):
    """All trials of one call of `hotloop bench effectiveness CONFIG`."""

    def __init__(
        self, runner: OptionRunner, rounds: Sequence[Sequence[Fix]], again: Callable[[str], str]
    ) -> None:
        super().__init__(runner, rounds, again)
        self._results: dict[str, SessionResult] = {}
        self._missing: dict[str, int] = {}
        """Pairs of each value that the budget left out."""

    @staticmethod
    def planned(num_values: int, num_options: int) -> tuple[int, int]:
        # Of one value: another call goes on with the others, and fewer steps would make each answer worse.
        return LOOKS[0], 2

    def all(self) -> Ledger:
        self._check_budget(losses=0 if self._is_begun() else 2)
        given = self._command([])
        values = [each for each in self.values if each.value[0].changes(each.value[1], given)]
        self.runner.report(fixes=tuple(value.name for value in values))
        for look in LOOKS:
            if look > (self.runner.most_pairs or look):
                break
            for value in values:
                if self._goes_on(value, look):
                    self._caught(value, partial(self._begin, up_to=look))
        return self._ledger()

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

    def _begin(self, value: Fix, up_to: int) -> None:
        try:
            self._measure(value, up_to)
        except CommandFailed as error:
            if not self.runner.was_cut_off(error):
                raise
            if value.name not in self._results:
                self._tell(value, "not_tried", f"{NO_TIME} before its first pair")

    def _measure(self, value: Fix, up_to: int) -> None:
        runner, before = self.runner, self._results.get(value.name)
        num_pairs = 0 if before is None else before.verdict.num_pairs
        needed_s = runner.needed_s(
            num_pairs + 1,
            losses=0 if before else 1,
            reserved=False,
            place=f"{self._place(value)}-{'?' * 16}",
        )
        self._missing[value.name] = up_to - num_pairs
        if not runner.pays_for(needed_s):
            if before is None:
                self._tell(value, "not_tried", f"{NO_TIME} before its first pair")
            return
        parity = self._parity([value])
        result = runner.timed([], [value], parity, pairs_now=up_to, reserved=False)
        verdict = replace(result.verdict, parity=longer(parity, result))
        result = self._results[value.name] = replace(result, verdict=verdict)
        status, why = judged(result, value, is_live=False)
        self._tell(value, status, f"{NO_TIME}: {why}" if status == "stopped" else why, result)
        entry = self.tried[value.name]
        if parity is not OTHERWISE:
            entry = with_costs(runner, value, entry, result)
        self.tried[value.name] = with_memory(entry, result.pairs)
        self._missing[value.name] = max(up_to - verdict.num_pairs, 0)

    def _ledger(self) -> Ledger:
        runner = self.runner
        missing = {
            value.name: self._missing[value.name]
            for value in self.values
            if self._missing.get(value.name) and self._is_unpaid(value)
        }
        losses = sum(name not in self._results for name in missing)
        more_s = SLACK * runner.needed_s(sum(missing.values()), losses=losses, reserved=False)
        whole = self._results.get(AUTO)
        is_kept = whole is not None and self.tried[AUTO].status == "kept"
        return runner.ledger(
            [self.tried[each.name] for each in self.values if each.name in self.tried],
            [AUTO] if is_kept else [],
            whole,
            not_comparable=self._comparisons.not_comparable if self._comparisons else None,
            continue_with=self.again(budget_text(more_s)) if missing else None,
        )

    def _is_unpaid(self, value: Fix) -> bool:
        """Whether more pairs would be made, had the budget held them."""
        if value.name not in self._results:
            return self.tried[value.name].status != "failed"
        return self._goes_on(value, LOOKS[-1])
