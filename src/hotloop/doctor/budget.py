"""What trying fixes takes, held against a budget: before anything is begun, and after each step of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hotloop.core.errors import UsageError
from hotloop.doctor.compared_arms import (
    NOISE,
    NOISE_RUNS,
    candidate_runs,
    class_of,
    drawn_otherwise,
    held_draws,
    rounded_otherwise,
    rounds_products,
)
from hotloop.doctor.confirmation import short_name
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import Learned
from hotloop.doctor.trial_costs import FIRST_PAIRS, LOSS_RUNS, MARGIN, SLACK, budget_text
from hotloop.doctor.workbench import Workbench
from hotloop.judge.draws_parity import DRAWN_RUNS
from hotloop.judge.looks import LOOKS
from hotloop.judge.parity import MIN_STEPS
from hotloop.trial.measure import is_finished


class BudgetTooSmall(UsageError):
    """Not even the losses of one fix and two pairs fit into it."""


def begin_within(bench: Workbench, fixes: Sequence[Fix], again: Callable[[str], str]) -> None:
    """Compares losses over fewer steps where else one fix could not be tried within the budget.

    again: the command that goes on with such a `--budget`. Raises `BudgetTooSmall` where not even its losses and
    a first two pairs of the fewest steps fit: what it asks for proves one fix on a machine that becomes twice as slow.
    """
    full, first = bench.plan, fixes[0]
    bench.fit(lambda: needed_s(bench, first))
    while MARGIN * needed_s(bench, first) > bench.left_s and bench.loss_steps > MIN_STEPS:
        bench.loss_steps = max(bench.loss_steps // 2, MIN_STEPS)
    needed = needed_s(bench, first)
    budget = budget_text(MARGIN * needed)
    least = (LOSS_RUNS + 1) * bench.costs.process_s(bench.loss_steps)
    least += FIRST_PAIRS * bench.costs.pair_s(bench.plan)
    bench.plan = full  # by how many steps it is cut shows when it is known what a process takes
    if least > bench.left_s:
        raise BudgetTooSmall(
            f"testing one fix here needs about {budget}, and the budget is {bench.budget_s:.0f} s",
            do=f"go on with `{again(budget)}`: the command is not run again",
        )
    if SLACK * needed > bench.left_s:
        bench.warn(
            f"{bench.left_s:.0f} s may not be enough to prove a fix, which takes about "
            f"{budget_text(needed)}: what is measured counts when the same command goes on"
        )


def pays_for_all(bench: Workbench, fixes: Sequence[Fix]) -> bool:
    """Whether there is time to choose among several by pairs of their own, and to confirm what is chosen."""
    needed = sum(needed_s(bench, fix) for fix in fixes)
    return len(fixes) > 1 and needed <= bench.left_s


def by_gain_per_second(bench: Workbench, fixes: Sequence[Fix]) -> list[Fix]:
    """The fixes with the largest expected gain for the time that trying them takes first: a budget may end after any."""
    return sorted(fixes, key=lambda fix: -math.log(fix.promise) / max(needed_s(bench, fix), 1.0))


def needed_s(
    bench: Workbench,
    fix: Fix,
    learned: Learned | None = None,
    *,
    cautious: bool = False,
) -> float:
    """Seconds to try a fix and to confirm it at the first looks, of what is not finished yet.

    cautious: no less than was expected before any trial.
    """
    plan = bench.plan_for([fix])
    at_once = proves_at_once(bench, fix)
    # No patched copy can be toggled.
    is_patched = at_once and fix.technique.source_edit is not None
    if learned is not None and fix.name in learned.switchable and not is_patched:
        plan = bench.switched_plan([fix]) or plan
    losses = 0.0 if learned is not None else _losses(bench, fix)
    return bench.needed_s(
        LOOKS[0],
        losses=losses + _written(bench, fix),
        slower_start_s=learned.slower_start_s if learned is not None else fix.technique.start_s,
        plan=plan,
        place=short_name(f"together-{fix.name}") if at_once else fix.name,
        reserved=not at_once,
        costs=bench.costs.at_least(bench.first_costs) if cautious else None,
    )


def asked_s(bench: Workbench, fixes: Sequence[Fix]) -> float:
    """Seconds of a budget with which all of these can be tried and confirmed, on a machine that becomes slower."""
    comparison = LOOKS[0] * bench.costs.pair_s(bench.plan)
    needs = [needed_s(bench, fix, cautious=True) for fix in fixes]
    # Those that are not proven yet are confirmed together.
    shared = sum(not proves_at_once(bench, fix) for fix in fixes) - 1
    # What is finished is not in the needs: a comparison at least may be left.
    return MARGIN * max(sum(needs) - max(shared, 0) * comparison, comparison, *needs)


def proves_at_once(bench: Workbench, fix: Fix) -> bool:
    """Whether its first pairs are its proof."""
    return bench.at_once and not fix.technique.what_if


def _written(bench: Workbench, fix: Fix) -> float:
    """Runs for the losses of edited files, before pairs are made of them."""
    places = bench.place_of("").glob("together-*/losses-*")
    if fix.technique.source_edit is None or any(map(is_finished, places)):
        return 0.0
    longer = _learnt_steps(bench, fix)
    runs = candidate_runs(bench, [fix])
    return runs if longer is None else runs + _in_loss_runs(bench, [longer])


def _losses(bench: Workbench, fix: Fix) -> float:
    """Runs of `loss_steps` steps that its losses may still take, those included that a harmless fix does without."""
    steps, arm = bench.loss_steps_of([fix]), bench.with_fixes(fix.name, [fix])
    runs = [(bench.baseline, of, n) for n in _up_to(LOSS_RUNS) for of in {bench.loss_steps, steps}]
    runs.append((arm, steps, 1))
    if class_of(bench, [fix]) == "other_draws":
        drawn = [drawn_otherwise(bench.baseline, number) for number in _up_to(DRAWN_RUNS)]
        runs += [(each, steps, 1) for each in (*drawn, held_draws(arm, 1))]
    if not is_finished(bench.losses_place(arm, steps)):  # else it is known whether it needs them
        size = (
            NOISE.get(class_of(bench, [fix])) if fix.technique.parity_class != "bitwise" else None
        )
        if size is not None:
            noisy = [(rounded_otherwise(bench.baseline, size, n), n) for n in _up_to(NOISE_RUNS)]
            runs += [(each, steps, number) for each, number in noisy]
        if (longer := _learnt_steps(bench, fix)) is not None:
            runs += [(bench.baseline, longer, 1), (arm, longer, 1)]
    todo = [of for arm, of, n in runs if not is_finished(bench.losses_place(arm, of, n))]
    return _in_loss_runs(bench, todo)


def _in_loss_runs(bench: Workbench, steps: Sequence[int]) -> float:
    """How many runs of `loss_steps` steps take as long as runs of these."""
    return sum(map(bench.costs.process_s, steps)) / bench.costs.process_s(bench.loss_steps)


def _learnt_steps(bench: Workbench, fix: Fix) -> int | None:
    """Steps of the longer runs that products of fewer digits are compared over; `None` where there are none."""
    longer = bench.learnt_steps
    is_longer = longer is not None and longer > bench.loss_steps_of([fix])
    return longer if is_longer and rounds_products([fix]) else None


def _up_to(number: int) -> range:
    return range(1, number + 1)
