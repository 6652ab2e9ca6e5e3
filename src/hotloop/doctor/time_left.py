"""When a comparison ends for want of time: what has to follow it must still fit into the budget."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hotloop.doctor.trial_costs import MARGIN, USUAL_PAIRS
from hotloop.judge.compare import looks_faster
from hotloop.judge.looks import LOOKS

if TYPE_CHECKING:
    from hotloop.core.judgement import Verdict
    from hotloop.doctor.trial_runner import TrialRunner
    from hotloop.trial.plan import TrialPlan


class TimeLeft:
    """For one comparison, asked before each pair and at each look.

    plan: of its pairs. slower_start_s: of a process with the fix than of one without. reserved: a confirmation on
    fresh pairs follows.
    """

    def __init__(
        self, runner: TrialRunner, plan: TrialPlan, *, slower_start_s: float, reserved: bool
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._slower_start_s = slower_start_s
        self._reserved = reserved
        self._begun_s = runner.spent_s
        self._num_pairs = 0

    def for_more_pairs(self, verdict: Verdict) -> bool:
        """Whether the pairs up to the next look may be begun."""
        if verdict.num_pairs >= USUAL_PAIRS and not looks_faster(verdict):
            return False  # more pairs could only say how much slower
        return not self._runner.short_s(
            max(later - look for look, later in pairwise(LOOKS)),
            # Not with the time of what has to follow, on a machine that becomes slower too.
            margin=MARGIN if self._reserved else 1.0,
            slower_start_s=self._slower_start_s,
            reserved=self._reserved,
            plan=self._plan,
        )

    def is_up(self) -> bool:
        """When pairs take so much longer than expected that what has to follow would not fit.

        Up to the first look that is the next pair: what is measured by then counts in a later call.
        """
        self._num_pairs += 1
        pair_s = max(
            self._runner.costs.pair_s(self._plan) + self._slower_start_s,
            (self._runner.spent_s - self._begun_s) / self._num_pairs,
        )
        if self._num_pairs < LOOKS[0] and not (self._reserved and self._runner.must_confirm):
            return self._runner.left_s < pair_s
        return self._reserved and self._runner.left_s < LOOKS[0] * pair_s
