"""What trying fixes takes, held against a budget: before anything is begun, and after each step of it (`FixTrials` asks)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial

from hotloop.core.errors import UsageError
from hotloop.doctor.compared_arms import (
    NOISE,
    NOISE_RUNS,
    candidate_runs,
    class_of,
    compared_arms,
    draws_in_batches,
    rounded_otherwise,
    rounds_products,
    same_rng_class_of,
    with_fixed_rng,
    with_other_rng,
)
from hotloop.doctor.confirmation import checking_s, place_within, short_name
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import LossComparison
from hotloop.doctor.trial_costs import LOSS_RUNS, MARGIN, MORE_PAIRS, SLACK, budget_text
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.judge.looks import LOOKS
from hotloop.judge.parity import MIN_STEPS
from hotloop.judge.rng_parity import OTHER_RNG_RUNS
from hotloop.trial.measure import is_finished


class BudgetTooSmall(UsageError):
    """Not even the losses of one fix and one pair fit into it."""


def begin_within(runner: TrialRunner, fixes: Sequence[Fix], again: Callable[[str], str]) -> None:
    """Compares losses over fewer steps where else one fix could not be tried within the budget.

    again: the command that goes on with such a `--budget`. Raises `BudgetTooSmall` where not even its losses and
    a first pair of the fewest steps fit: what it asks for proves one fix on a machine that becomes twice as slow.
    """
    full, first = runner.plan, fixes[0]
    runner.fit(lambda: needed_s(runner, first))
    needed = fit_losses(runner, lambda: needed_s(runner, first))
    least = 2 * runner.costs.process_s(runner.loss_steps)
    least += runner.costs.pair_s(runner.plan)
    runner.plan = full  # by how many steps it is cut shows when it is known what a process takes
    if least > runner.left_s:
        raise too_small(runner, needed, again)
    warn_of_little(runner, needed, "a fix")


def fit_losses(runner: TrialRunner, needed_s: Callable[[], float]) -> float:
    """Compares fewer losses where else what is needed, with a margin, does not fit into what is left; returns what is needed."""
    while MARGIN * needed_s() > runner.left_s and runner.loss_steps > MIN_STEPS:
        runner.loss_steps = max(runner.loss_steps // 2, MIN_STEPS)
    return needed_s()


def warn_of_little(runner: TrialRunner, needed_s: float, what: str) -> None:
    """What this budget cannot prove is said before anything is measured."""
    if SLACK * needed_s > runner.left_s:
        runner.warn(
            f"{runner.left_s:.0f} s may not be enough to prove {what}, which takes about "
            f"{budget_text(SLACK * needed_s)}: what is measured counts when the same command goes on"
        )


def too_small(runner: TrialRunner, needed_s: float, again: Callable[[str], str]) -> BudgetTooSmall:
    """The error that says which budget proves one fix."""
    budget = budget_text(MARGIN * needed_s)
    return BudgetTooSmall(
        f"testing one fix here needs about {budget}, and the budget is {runner.budget_s:.0f} s",
        do=f"go on with `{again(budget)}`: the command is not run again",
    )


def pays_for_all(runner: TrialRunner, fixes: Sequence[Fix]) -> bool:
    """Whether there is time to choose among several by pairs of their own, and to confirm what is chosen."""
    needed = sum(needed_s(runner, fix) for fix in fixes)
    return len(fixes) > 1 and needed <= runner.left_s


def by_gain_per_second(runner: TrialRunner, fixes: Sequence[Fix]) -> list[Fix]:
    """The fixes with the largest expected gain for the time that trying them takes first: a budget may end after any.

    Before them those that fit into what is left: what does not would use it up and prove nothing.
    """

    def place(fix: Fix) -> tuple[bool, float]:
        per_second = gain_per_second(fix.promise, needed_s(runner, fix))
        full = runner.plan
        runner.fit(lambda: needed_s(runner, fix))
        fits = needed_s(runner, fix) <= runner.left_s
        runner.plan = full
        return not fits, -per_second

    return sorted(fixes, key=place)


def gain_per_second(gain: float, seconds: float) -> float:
    """What an expected ratio is worth, for the time that trying it takes; 0 of one that expects nothing."""
    return math.log(gain) / max(seconds, 1.0)


def needed_s(
    runner: TrialRunner,
    fix: Fix,
    comparison: LossComparison | None = None,
    *,
    cautious: bool = False,
    undecided: bool = False,
) -> float:
    """Seconds to try a fix and to confirm it at the first looks, of what is not finished yet.

    cautious: no less than was expected before any trial. undecided: a look decided nothing, so that pairs up to
    the next one are needed.
    """
    plan = runner.plan_for([fix])
    at_once = proves_at_once(runner, fix)
    place = short_name(f"together-{fix.name}") if at_once else fix.name
    checking = 0.0
    if comparison is not None and fix.name in comparison.toggleable:
        toggled = runner.toggled_plan([fix])
        if toggled is not None and at_once and fix.technique.source_edit is not None:
            checking, place = checking_s(runner, [fix], place), place_within(place)
        plan = toggled or plan
    losses = 0.0 if comparison is not None else num_losses(runner, fix)
    needed = partial(
        runner.needed_s,
        slower_start_s=comparison.slower_start_s
        if comparison is not None
        else fix.technique.start_s,
        plan=plan,
        costs=runner.costs.at_least(runner.first_costs) if cautious else None,
    )
    first_s = checking + needed(
        LOOKS[0],
        losses=losses + _written(runner, fix),
        place=place,
        reserved=not at_once,
    )
    return first_s + (needed(MORE_PAIRS, reserved=False) if undecided else 0.0)


def asked_s(
    runner: TrialRunner, fixes: Sequence[Fix], undecided: Collection[str] = frozenset()
) -> float:
    """Seconds of a budget with which all of these can be tried and confirmed, on a machine that becomes slower.

    undecided: names of those that a look did not decide.
    """
    comparison_s = LOOKS[0] * runner.costs.pair_s(runner.plan)
    needs = [needed_s(runner, fix, cautious=True, undecided=fix.name in undecided) for fix in fixes]
    # Those that are not proven yet are confirmed together.
    shared = sum(not proves_at_once(runner, fix) for fix in fixes) - 1
    # What is finished is not in the needs: a comparison at least may be left.
    expected = MARGIN * max(sum(needs) - max(shared, 0) * comparison_s, comparison_s, *needs)
    # With less the next call would repeat what is finished, and end where this one did.
    return max(expected, SLACK * runner.unpaid_s)


def proves_at_once(runner: TrialRunner, fix: Fix) -> bool:
    """Whether its first pairs are its proof."""
    return runner.at_once and not fix.technique.what_if


def first_losses_s(runner: TrialRunner, fix: Fix) -> float:
    """Seconds of the two runs for losses that a fix begins with, of those that are not finished."""
    steps = runner.loss_steps_of([fix])
    arms = compared_arms(runner, runner.with_fixes(fix.name, [fix]), [fix])
    missing = sum(not is_finished(runner.losses_place(arm, steps)) for arm in arms)
    return missing * runner.costs.process_s(steps)


def _written(runner: TrialRunner, fix: Fix) -> float:
    """Runs for the losses of edited files, before pairs are made of them."""
    places = runner.place_of("").glob("together-*/losses-*")
    if fix.technique.source_edit is None or any(map(is_finished, places)):
        return 0.0
    longer = _learnt_steps(runner, fix)
    runs = candidate_runs(runner, [fix])
    return runs if longer is None else runs + _in_loss_runs(runner, [longer])


def num_losses(runner: TrialRunner, fix: Fix) -> float:
    """Runs of `loss_steps` steps that its losses may still take, those included that a harmless fix does without."""
    steps, arm = runner.loss_steps_of([fix]), runner.with_fixes(fix.name, [fix])
    baseline, arm = compared_arms(runner, arm, [fix])
    is_known = is_finished(runner.losses_place(arm, steps))  # and so what else was needed
    # What has to equal the baseline to the last bit is kept or rejected without a second run of that.
    number = 1 if is_known or class_of(runner, [fix]) == "bitwise" else LOSS_RUNS
    runs = [(arm, steps, 1), *((baseline, steps, n) for n in _up_to(number))]
    if draws_in_batches(runner, [fix]):
        drawn = [with_other_rng(baseline, number) for number in _up_to(OTHER_RNG_RUNS)]
        runs += [(each, steps, 1) for each in (*drawn, with_fixed_rng(arm, 1))]
    if not is_known:
        size = (
            NOISE.get(same_rng_class_of(runner, [fix]))
            if fix.technique.parity_class != "bitwise"
            else None
        )
        if size is not None:
            noisy = [(rounded_otherwise(baseline, size, n), n) for n in _up_to(NOISE_RUNS)]
            runs += [(each, steps, number) for each, number in noisy]
        if (longer := _learnt_steps(runner, fix)) is not None:
            runs += [(baseline, longer, 1), (arm, longer, 1)]
    todo = [of for arm, of, n in runs if not is_finished(runner.losses_place(arm, of, n))]
    return _in_loss_runs(runner, todo)


def _in_loss_runs(runner: TrialRunner, steps: Sequence[int]) -> float:
    """How many runs of `loss_steps` steps take as long as runs of these."""
    return sum(map(runner.costs.process_s, steps)) / runner.costs.process_s(runner.loss_steps)


def _learnt_steps(runner: TrialRunner, fix: Fix) -> int | None:
    """Steps of the longer runs that products of fewer digits are compared over; `None` where there are none."""
    longer = runner.learnt_steps
    is_longer = longer is not None and longer > runner.loss_steps_of([fix])
    return longer if is_longer and rounds_products([fix]) else None


def _up_to(number: int) -> range:
    return range(1, number + 1)
