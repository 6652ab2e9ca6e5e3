"""How long trials take: how many steps to compare, what fits into a budget, and when time is up."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hotloop.core.errors import UsageError
from hotloop.core.measurement import Measurement
from hotloop.doctor.training_loader import script_queue
from hotloop.judge.compare import looks_faster
from hotloop.judge.looks import LARGE, LOOKS
from hotloop.judge.parity import MAX_STEPS, MIN_STEPS
from hotloop.judge.worth import PAIRS, STEPS, counted_steps, warmup_steps
from hotloop.trial.plan import TrialPlan

if TYPE_CHECKING:
    from hotloop.core.judgement import Verdict
    from hotloop.doctor.trial_runner import TrialRunner


FASTER_S = 1.0
"""The same of the process that is expected to be faster: at least."""
LEAST_STEPS = STEPS[0] // 2
LEAST_COUNTED_S = 3.0
"""Seconds of counted steps to which a budget may cut them: slow steps may be fewer than usual."""
TOGGLED_STEPS = STEPS[0]
"""Steps of a fix that is toggled within a process, which counts twice as many: enough for blocks."""
MORE_PAIRS = max(later - look for look, later in pairwise(LOOKS))
"""Pairs up to the next look, at most: what one has to leave time for that decided nothing."""
FIRST_PAIRS = 2
"""Pairs that show which fixes not to measure further."""
LOSS_STEPS = 60
"""Steps whose losses are compared; more where an epoch ends a little later."""
AFTER_EPOCH = 20
PATIENCE_S, TIMES_EXPECTED = 60.0, 10
"""Every process may take so long, and so many times what is expected of it."""
LATE_S = 5.0
"""By which a process that was expected to fit into the budget may exceed it before it is ended."""
LOOKS_LARGE = 2
"""Pairs that all show a large gain: it is about to be proven."""
SLACK, MARGIN = 1.25, 2.0
"""Processes of trials take longer than was seen of the command: by about the first, up to the second on a busy
machine. A budget has to hold the first to be begun with; what is asked for holds the second."""
LOSS_RUNS = 2
"""Runs of the baseline for its losses."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What one process takes."""

    start_s: float
    step_s: float

    def process_s(self, steps: int) -> float:
        return self.start_s + steps * self.step_s

    def pair_s(self, plan: TrialPlan) -> float:
        processes = 1 if plan.block_steps else 2  # one, in which it goes on and off
        return processes * self.process_s(plan.num_steps)

    def at_least(self, others: Costs) -> Costs:
        """The larger of both: one process may have been lucky."""
        return Costs(max(self.start_s, others.start_s), max(self.step_s, others.step_s))

    def sooner(self, seconds: float) -> Costs:
        """Of processes that start so much sooner."""
        return Costs(max(self.start_s - seconds, 0.0), self.step_s)

    def corrected(self, measurement: Measurement, *, besides_s: float = 0.0) -> Costs:
        """By a process of the trials themselves, which has no probe. besides_s: what making a copy for it took."""
        steps = sorted(record.wall_s for record in measurement.records[1:])
        if not steps or measurement.process_s is None:
            return self
        step_s = steps[len(steps) // 2]
        start_s = measurement.process_s - len(measurement.records) * step_s
        return Costs(max(start_s, 0.0) + besides_s, step_s)


def plan_for(measurement: Measurement, *, steps: int | None) -> tuple[TrialPlan, Costs]:
    """How many steps to compare. Raises `UsageError` for a run that is too short to compare."""
    records = [each for each in measurement.records if "warmup" not in each.tags]
    walls = sorted(each.wall_s for each in records)
    if not walls:
        raise UsageError("no step was seen, so no fix can be tried")
    median = walls[len(walls) // 2]
    total = len(measurement.records)
    seen = len(measurement.records) - len(records)
    warmup = max(min(seen, total // 3, warmup_steps(median)), 3)
    queue = script_queue(measurement.census)
    if queue.fits(total):
        warmup = max(warmup, queue.warmup_steps)
    wanted = steps or counted_steps(median)
    counted = queue.counted(wanted, total - warmup) or min(wanted, total - warmup)
    if counted < LEAST_STEPS or total < MIN_STEPS:
        least = max(MIN_STEPS, warmup + LEAST_STEPS)
        if steps is not None and sum("profiled" not in each.tags for each in records) >= steps:
            raise UsageError(
                f"--steps {steps} ended it after {total} steps: too few to compare one way of running "
                f"it with another (at least {least})",
                do=f"give at least --steps {max(steps + least - total, LEAST_STEPS)}, or ask for the "
                "diagnosis alone: hotloop doctor --no-try",
            )
        raise UsageError(
            f"{total} steps were seen: too few to compare one way of running it with another "
            f"(at least {least})",
            do=f"let it train for longer, give --steps {least} where hotloop ended it, or ask for the diagnosis "
            "alone: hotloop doctor --no-try",
        )
    start = measurement.census.start_s if measurement.census is not None else None
    costs = Costs(start if start is not None else 10.0, median)
    timeout = PATIENCE_S + TIMES_EXPECTED * costs.process_s(warmup + counted)
    return TrialPlan(warmup, counted, timeout_s=timeout, looks=LOOKS, aa_pairs=0), costs


def budget_text(seconds: float) -> str:
    """As `--budget` takes it, rounded up: `150s`, `7m`, `3h`."""
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds > 3 * length:
            return f"{math.ceil(seconds / length)}{unit}"
    return f"{math.ceil(seconds)}s"


def budget_of(text: str) -> float:
    """Seconds of `90s`, `10m` or `2h`, since a bare number could be any of them; `none`: infinite. Raises `ValueError`."""
    if text == "none":
        return math.inf
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)\s*([smh]?)", text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is no time; write 90s, 10m or 2h")
    if not match[2]:
        raise ValueError(f"{text!r} has no unit; say {match[1]}m or {match[1]}s")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def loss_steps(measurement: Measurement) -> int:
    """Steps whose losses are compared: past the end of the first epoch, where it comes soon."""
    total = len(measurement.records)
    ends = [record.step for record in measurement.records[1:] if "epoch" in record.tags]
    wanted = LOSS_STEPS
    if ends and ends[0] + AFTER_EPOCH <= MAX_STEPS:
        wanted = max(wanted, ends[0] + AFTER_EPOCH)
    return min(wanted, total)


class TimeLeft:
    """For one comparison, asked before each pair and at each look.

    plan: of its pairs. slower_start_s: of a process with the fix than of one without. reserved: a confirmation on
    fresh pairs follows. follows_s: what else does takes.
    """

    def __init__(
        self,
        runner: TrialRunner,
        plan: TrialPlan,
        *,
        slower_start_s: float,
        reserved: bool,
        follows_s: float = 0.0,
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._slower_start_s = slower_start_s
        self._reserved = reserved
        self._follows_s = follows_s
        self._begun_s = runner.spent_s
        self._takes_rest = False

    def for_more_pairs(self, verdict: Verdict) -> bool:
        """Whether the pairs up to the next look may be begun."""
        runner, faster = self._runner, looks_faster(verdict)
        if verdict.num_pairs >= PAIRS and not faster:
            return False  # more pairs could only say how much slower
        # Not with the time of what has to follow, on a machine that becomes slower too.
        margin = MARGIN if self._reserved else 1.0
        needed_s = margin * runner.needed_s(
            MORE_PAIRS,
            slower_start_s=self._slower_start_s,
            reserved=self._reserved,
            plan=self._plan,
        )
        needed_s += self._follows_s
        if needed_s <= runner.left_s:
            return True
        waits = self._reserved and runner.must_confirm
        # Unless a fix waits to be confirmed, what is left is used: what is measured counts in a later call.
        self._takes_rest = faster and runner.pays_for(
            needed_s if waits else self._pair_s + self._follows_s
        )
        return self._takes_rest or self._about_to_prove(verdict, self._pair_s)

    def is_up(self, verdict: Verdict, num_new: int) -> bool:
        """When pairs take so much longer than expected that what has to follow would not fit.

        num_new: those of this call. Up to the first look, and where the rest is used, what has to follow is the next
        pair, unless a fix waits to be confirmed: what is measured by then counts in a later call.
        """
        runner, pair_s, num_pairs = self._runner, self._pair_s, verdict.num_pairs
        if not num_new:
            return not runner.pays_for(pair_s)
        pair_s = max(pair_s, (runner.spent_s - self._begun_s) / num_new)
        confirming_s = runner.confirming_pairs(self._plan) * pair_s if self._reserved else 0.0
        if num_pairs < LOOKS[0] or self._takes_rest:
            pair_s += self._follows_s if self._takes_rest else 0.0
            is_up = runner.left_s < max(pair_s, confirming_s * runner.must_confirm)
            return is_up and not self._about_to_prove(verdict, pair_s)
        return confirming_s > 0 and runner.left_s < confirming_s

    def _about_to_prove(self, verdict: Verdict, pair_s: float) -> bool:
        """Whether every pair shows a large gain, and the budget holds those up to the next look, extended if need be.

        Going on for what pairs show spends no error: a gain is claimed at planned looks alone.
        """
        ratios = verdict.pair_ratios
        if self._reserved or len(ratios) < LOOKS_LARGE or min(ratios) < LARGE:
            return False
        missing = next((look - len(ratios) for look in LOOKS if look > len(ratios)), 0)
        return missing > 0 and self._runner.extend(missing * pair_s + self._follows_s)

    @property
    def _pair_s(self) -> float:
        return self._runner.costs.pair_s(self._plan) + self._slower_start_s
