"""The trials of fixes, one after another as the budget pays for them, and what a larger one would go on with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Status
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.doctor.budget import asked_s, first_losses_s, needed_s, proves_at_once, too_small
from hotloop.doctor.compared_arms import class_of
from hotloop.doctor.confirmation import Confirmed, confirmed
from hotloop.doctor.directory import store_options
from hotloop.doctor.fix_costs import over_epochs, with_costs
from hotloop.doctor.fix_stack import order_of, stack
from hotloop.doctor.fix_status import (
    confirmed_over_more,
    ended_early,
    is_surprising,
    judged,
    longer,
    may_decide,
    may_yet,
    pooled_ratio,
    showed,
    status_of,
    tried_fix,
    useless,
)
from hotloop.doctor.fixes import LEAST_GAIN, Fix
from hotloop.doctor.loss_parity import LossComparison, LossComparisons
from hotloop.doctor.trial_costs import FIRST_PAIRS, SLACK, TOGGLED_STEPS, budget_of, budget_text
from hotloop.doctor.trial_reports import WritesOutside
from hotloop.doctor.trial_runner import BASELINE, OutOfBudget, TrialRunner
from hotloop.judge.looks import LOOKS, TOTAL_ERROR, divided_levels
from hotloop.trial.session import SessionResult

MORE_STEPS = 2
"""Times as many, to look into a gain that was not expected."""


class FixTrials:
    """All trials of one call: each fix, then what helped together."""

    def __init__(
        self,
        runner: TrialRunner,
        fixes: Sequence[Fix],
        *,
        may_fit: bool,
        all_asked: bool,
        again: Callable[[str], str],
        to_first_look: bool = False,
    ) -> None:
        """fixes: in the order in which they are tried. all_asked: they were asked for by name, so that each is tried.
        to_first_look: what shows no gain in its first pairs is measured up to there, too."""
        self.runner = runner
        self.fixes = fixes
        self.may_fit = may_fit and runner.budget_s is not None
        """No comparison was begun: it may still be one of fewer steps."""
        self.all_asked = all_asked
        self.again = again
        self.to_first_look = to_first_look
        self.unpaid: dict[str, Fix] = {}
        """What a larger budget would go on with."""
        self.undecided: set[str] = set()
        """Of that, what looks faster at a look that decided nothing."""
        self.levels = divided_levels(LOOKS, len(fixes), TOTAL_ERROR)
        """Error of each look at pairs that prove a fix at once."""
        self.proven: dict[str, Confirmed] = {}
        self.compared: dict[str, LossComparison] = {}
        """Of those that were timed at least."""
        self.set_aside: list[Fix] = []
        """Not decided by their first look while others waited."""
        try:
            self.comparisons = LossComparisons(runner, fixes[:1])
        except OutOfBudget:
            raise too_small(runner, needed_s(runner, fixes[0]), again) from None

    def all(self) -> Ledger:
        """Raises what `LossComparisons` raises of the unchanged command."""
        runner, tried = self.runner, dict[str, TriedFix]()
        for fix in self.fixes:
            runner.report(current=fix.name)
            tried[fix.name] = self._nothing_left(fix, tried) or self._tried(fix)
            runner.report(tried=tuple(tried.values()), current=None, pair=None, process="", note="")
            kept = tried[fix.name].status == "kept"
            runner.must_confirm |= kept and fix.name not in self.proven
        self._go_on(tried)
        runner.report(together=True)
        kept_alone = [fix for fix in self.fixes if tried[fix.name].status == "kept"]
        undecided = [fix for fix in self.fixes if may_yet(tried[fix.name])]
        order = order_of(kept_alone, undecided, tried)
        found = stack(runner, self.comparisons, order, tried, self.proven)
        together = found.verdict
        self.unpaid |= {fix.name: fix for fix in order if tried[fix.name].status == "stopped"}
        came = [(fix, tried[fix.name]) for fix in self.fixes]
        left = [(fix, each) for fix, each in came if each.status == "undecided"]
        early = [fix for fix, each in left if ended_early(each.added or each.verdict)]
        for fix in early:
            tried[fix.name] = _out_of_budget(tried[fix.name])
        is_kept = found.status == "kept"
        early += found.fixes if not is_kept and may_decide(together) else ()
        self.unpaid |= {fix.name: fix for fix in early}
        self.undecided |= {fix.name for fix in early}
        kept_names = tuple(fix.name for fix in found.fixes) if is_kept else ()
        is_chosen = len(kept_names) == 1 and kept_names[0] not in self.proven
        chose = tried[kept_names[0]].verdict if is_chosen else None
        whole = over_epochs(runner.census, found.fixes, found.result) if is_kept else None
        return runner.ledger(
            tuple(tried.values()),
            kept_names,
            found.result,
            not_comparable=self.comparisons.not_comparable,
            together_patched=found.patched,
            together_pooled=pooled_ratio(chose, together),
            together_over_epochs=whole,
            continue_with=self._continue_with(),
        )

    def _go_on(self, tried: dict[str, TriedFix]) -> None:
        """With what was set aside: the rest of the budget is theirs, those first that look faster."""
        for fix in sorted(
            self.set_aside, key=lambda each: not ended_early(tried[each.name].verdict)
        ):
            self.runner.report(current=fix.name)
            entry = self._caught(fix, self._proven)
            if entry.verdict is not None:  # else nothing was left for another pair
                tried[fix.name] = entry
            self.runner.report(tried=tuple(tried.values()), current=None, pair=None)

    def _nothing_left(self, fix: Fix, tried: Mapping[str, TriedFix]) -> TriedFix | None:
        """Its line of the ledger where one that is proven brings what all of its findings could."""
        if self.all_asked or fix.gain_at_most is None:
            return None
        for name in self.proven:
            if tried[name].status != "kept":  # it costs more than it brings
                continue
            verdict = tried[name].verdict
            ratio = verdict.ratio if verdict is not None else None
            same = set(fix.answers) <= set(tried[name].answers)
            if same and ratio is not None and fix.gain_at_most / ratio < LEAST_GAIN:
                why = (
                    f"{name} already brings {ratio:.2f}x, and its finding promised {fix.gain_at_most:.2f}x at most; "
                    f"--only {fix.name} tries it all the same"
                )
                return tried_fix(fix, "not_tried", why)
        return None

    def _tried(self, fix: Fix) -> TriedFix:
        known = self._compare_losses(fix)
        if isinstance(known, TriedFix):
            return known
        self._fit(fix, known)
        if not self._can_begin(fix, known):
            return self._unpaid(fix, known)
        self.compared[fix.name] = known
        if proves_at_once(self.runner, fix):
            others_wait = self.runner.budget_s is not None and fix is not self.fixes[-1]
            pairs_now = LOOKS[0] if others_wait else None
            return self._caught(fix, partial(self._proven, pairs_now=pairs_now))
        return self._caught(fix, self._timed)

    def _caught(self, fix: Fix, trying: Callable[[Fix, LossComparison], TriedFix]) -> TriedFix:
        try:
            return trying(fix, self.compared[fix.name])
        except (CommandFailed, WritesOutside) as error:
            return self._failed(fix, error)

    def _fit(self, fix: Fix, comparison: LossComparison) -> None:
        """Counts as many steps as fit, once it is known what a process takes and before any is compared."""
        if self.may_fit:
            self.may_fit = False
            self.runner.warm_up()
            needed = partial(needed_s, self.runner, fix, comparison, cautious=True)
            if fix.name in comparison.toggleable:  # fewer would make pairs of processes of it
                self.runner.fit(needed, least_steps=TOGGLED_STEPS)
            enough = SLACK * needed_s(self.runner, fix, comparison) <= self.runner.left_s
            if fix.name not in comparison.toggleable or not enough:
                self.runner.fit(needed)
            store_options(
                *(self.runner.directory, self.runner.plan, self.runner.loss_steps),
                at_once=self.runner.at_once,
            )

    def _can_begin(self, fix: Fix, comparison: LossComparison | None = None) -> bool:
        """Whether it may take what is left: all of it where nothing waits to be confirmed."""
        if self.runner.must_confirm:
            return self.runner.pays_for(needed_s(self.runner, fix, comparison))
        if comparison is None:
            return self.runner.pays_for(first_losses_s(self.runner, fix))
        process_s = self.runner.costs.process_s(self.runner.loss_steps)
        # Nothing where all of its pairs are finished: what they say is never lost to a small budget.
        return self.runner.pays_for(min(process_s, needed_s(self.runner, fix, comparison)))

    def _unpaid(
        self,
        fix: Fix,
        comparison: LossComparison | None = None,
        result: SessionResult | None = None,
    ) -> TriedFix:
        """Its line of the ledger where the budget does not do; and it is gone on with by a larger one."""
        self.unpaid[fix.name] = fix
        runner = self.runner
        why = (
            f"out of budget: {runner.spent_s:.0f} s of {runner.budget_s or 0:.0f} s used; it needs about "
            f"{needed_s(runner, fix, comparison):.0f} s more"
        )
        why += f" ({showed(result.verdict)})" if result is not None else ""
        return self._costed(fix, "stopped" if result is not None else "not_tried", why, result)

    def _continue_with(self) -> str | None:
        """The command that goes on with what the budget left out."""
        if not self.unpaid:
            return None
        runner = self.runner
        budget_s, pair_s = runner.budget_s or 0.0, runner.costs.pair_s(runner.plan)
        asked = budget_text(asked_s(runner, list(self.unpaid.values()), self.undecided))
        # Time that was kept for a confirmation is there again, and finished pairs take none: as much as now goes on,
        # also where no more is asked beyond it than was left over. Not where this call got nowhere.
        is_enough = budget_s > 0 and runner.unpaid_s <= budget_s and pair_s <= runner.left_s
        is_near = (
            pair_s <= runner.spent_s and budget_s < budget_of(asked) <= budget_s + runner.left_s
        )
        if is_enough and (is_near or self.undecided.issuperset(self.unpaid)):
            asked = f"{math.floor(budget_s)}s"
        return self.again(asked)

    def _compare_losses(self, fix: Fix) -> LossComparison | TriedFix:
        """What its losses say, or why it need not be timed."""
        runner = self.runner
        plan = runner.plan_for([fix])
        if plan is None:
            why = f"its effect shows after {fix.warmup_steps} steps, and the run was seen to make {runner.num_steps}"
            return tried_fix(fix, "not_tried", why)
        if not self._can_begin(fix):
            return self._unpaid(fix)
        try:
            comparison = self.comparisons.of(fix.name, [fix])
        except (CommandFailed, WritesOutside) as error:
            return self._failed(fix, error)
        if comparison.wrong is not None:
            return tried_fix(fix, "rejected", comparison.wrong, begun=True)
        if comparison.not_applied is not None:
            return tried_fix(fix, "not_applied", comparison.parity.reason)
        if comparison.parity.result == "different" and not fix.technique.what_if:
            why = "it learns something else: " + comparison.parity.reason
            return tried_fix(fix, "rejected", why, begun=True)
        return comparison

    def _proven(
        self, fix: Fix, comparison: LossComparison, *, pairs_now: int | None = None
    ) -> TriedFix:
        """On pairs of its patched copy, or toggled; where the budget is for several, on two alone where those show no gain.

        pairs_now: set aside after so many, where they decide nothing.
        """
        live = tried_fix(fix, "kept", "", begun=True)
        given = (self.runner, self.comparisons, [fix], {fix.name: live})
        trying = partial(confirmed, *given, alpha=self.levels)
        is_shared = self.runner.budget_s is not None and len(self.fixes) > 1
        shares = is_shared and not self.to_first_look
        found = trying(pairs_now=FIRST_PAIRS if shares else pairs_now)
        first = found.verdict
        if shares and first is not None and found.status == "stopped":
            if first.num_pairs == FIRST_PAIRS and useless(first):
                why = f"not tried further: {showed(first)}"
                return self._costed(fix, "stopped", why, found.result)
            found = trying(pairs_now=pairs_now)
        if found.may_show and pairs_now is not None:
            self.set_aside.append(fix)
        if found.failed is not None:
            raise found.failed
        if found.status == "stopped":
            return self._unpaid(fix, comparison, found.result)
        if found.dropped:
            return tried_fix(fix, "rejected", f"the patched script {found.dropped[fix.name]}")
        if found.status != "kept":
            return self._costed(fix, found.status, found.why, found.result)
        assert found.result is not None
        verdict = self._looked_into(fix, comparison, found.result).verdict
        status, why = status_of(verdict)
        result = replace(found.result, verdict=verdict)
        if status == "stopped":
            return self._unpaid(fix, comparison, result)
        if status != "kept":
            return self._costed(fix, status, why, result)
        self.proven[fix.name] = found
        return self._costed(fix, "kept", why, found.result)

    def _timed(self, fix: Fix, comparison: LossComparison) -> TriedFix:
        """On pairs of its live form, which choose whether fresh ones are made of its patched copy."""
        result = self._looked_into(fix, comparison, self._compared(fix, comparison))
        parity = longer(comparison.parity, result)
        result = replace(result, verdict=replace(result.verdict, parity=parity))
        status, why = judged(result, fix)
        if status == "stopped":
            return self._unpaid(fix, comparison, result)
        return self._costed(fix, status, why, result)

    def _costed(self, fix: Fix, status: Status, why: str, result: SessionResult | None) -> TriedFix:
        """With what it costs; no longer `kept` where that is more than it brings."""
        entry = tried_fix(fix, status, why, result)
        return entry if result is None else with_costs(self.runner, fix, entry, result)

    def _looked_into(
        self, fix: Fix, comparison: LossComparison, result: SessionResult
    ) -> SessionResult:
        """Over more steps, where it gains far more than was expected; with the verdict of both."""
        if not is_surprising(result.verdict, fix):
            return result
        runner = self.runner
        over_more: SessionResult | None = None
        usual, plan = runner.plan_for([fix]), runner.plan_for([fix], times=MORE_STEPS)
        assert usual is not None
        is_more = plan is not None and plan.steps >= MORE_STEPS / 1.5 * usual.steps
        more_s = runner.needed_s(LOOKS[0], plan=plan, place=f"{fix.name}-longer")
        if is_more and more_s <= runner.left_s:
            over_more = self._compared(fix, comparison, times=MORE_STEPS)
        verdict = confirmed_over_more(
            result.verdict, over_more.verdict if over_more is not None else None, fix
        )
        return replace(over_more or result, verdict=verdict)

    def _compared(self, fix: Fix, comparison: LossComparison, *, times: int = 1) -> SessionResult:
        runner = self.runner
        return runner.compare(
            runner.baseline,
            runner.with_fixes(fix.name, [fix]),
            fixes=[fix],
            place=fix.name if times == 1 else f"{fix.name}-longer",
            times=times,
            parity_class=class_of(runner, [fix]),
            parity=comparison.parity,
            toggled=comparison.toggleable & {fix.name},
            slower_start_s=comparison.slower_start_s,
        )

    def _failed(self, fix: Fix, error: CommandFailed | WritesOutside) -> TriedFix:
        """Isolated: the rest goes on."""
        if isinstance(error, WritesOutside):
            why = f"it writes outside the working directory: {error.path}"
            return tried_fix(fix, "failed", why)
        if isinstance(error, OutOfBudget):
            return self._unpaid(fix)
        if error.arm == BASELINE:
            why = f"not known: the unchanged command failed beside it: {error.what}"
        else:
            why = f"its trial failed: {error.what}"
        self.runner.warn(f"{fix.name}: {why}; the rest goes on")
        return tried_fix(fix, "failed", why, begun=True, details=error.do or "")


def _out_of_budget(entry: TriedFix) -> TriedFix:
    """Of one that more pairs may decide."""
    verdict = entry.added or entry.verdict
    assert verdict is not None
    return replace(
        entry, status="stopped", why=f"out of budget: {entry.why}; so far {showed(verdict)}"
    )
