"""The trials of fixes, in rounds of what the budget pays for, and what a larger budget would go on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hotloop.core.errors import CommandFailed
from hotloop.core.judgement import Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.doctor.applied import why_wrong
from hotloop.doctor.budget import asked_s, needed_s
from hotloop.doctor.directory import TRIALS
from hotloop.doctor.fix_stack import order_of, stack
from hotloop.doctor.fix_status import (
    judged,
    longer,
    may_yet,
    pooled_ratio,
    runs_of,
    showed,
    tried_fix,
    useless,
)
from hotloop.doctor.fixes import Fix
from hotloop.doctor.loss_parity import Learned, Learning
from hotloop.doctor.memory_cost import with_memory
from hotloop.doctor.plausible import confirmed_over_more, is_surprising
from hotloop.doctor.resumption import (
    store_options,
)
from hotloop.doctor.start_cost import with_start_cost
from hotloop.doctor.starting_point import isolation_of, network_of
from hotloop.doctor.trial_costs import (
    LOOKS,
    MARGIN,
    SCREENING_PAIRS,
    SLACK,
    TOGGLED_STEPS,
    USUAL_PAIRS,
    budget_text,
)
from hotloop.doctor.workbench import BASELINE, Workbench
from hotloop.doctor.writes import WritesOutside
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import SessionResult

MORE_STEPS = 2
"""Times as many, to look into a gain that was not expected."""


class FixTrials:
    """All trials of one call: rounds of what the budget pays for, then what helped together."""

    def __init__(
        self,
        bench: Workbench,
        *,
        may_fit: bool,
        again: Callable[[str], str],
    ) -> None:
        self.bench = bench
        self.may_fit = may_fit and bench.budget_s is not None
        """No comparison was begun: it may still be one of fewer steps."""
        self.again = again
        self.unpaid: dict[str, Fix] = {}
        """What a larger budget would go on with."""
        self.learning = Learning(bench)
        if self.learning.not_comparable is not None:
            bench.warn(
                f"its steps are not comparable from run to run: {self.learning.not_comparable}"
            )

    def all(self, fixes: Sequence[Fix]) -> Ledger:
        tried: dict[str, TriedFix] = {}
        waiting = list(fixes)
        while waiting:
            waiting = self._round(waiting, tried)
        kept = [fix for fix in fixes if tried[fix.name].status == "kept"]
        undecided = [fix for fix in fixes if may_yet(tried[fix.name])]
        order = order_of(kept, undecided, tried)
        found = stack(self.bench, self.learning, kept, tried, undecided)
        together = found.verdict
        self.unpaid |= {fix.name: fix for fix in order if tried[fix.name].status == "not_tried"}
        kept_names = () if found.why_not else tuple(fix.name for fix in found.fixes)
        alone = tried[kept_names[0]].verdict if len(kept_names) == 1 else None
        confirming = together and _plan_of(self.bench, together, found.fixes)
        return _ledger(
            self.bench,
            [self._with_steps(fix, tried[fix.name]) for fix in fixes],
            kept=kept_names,
            together=together,
            together_pooled=pooled_ratio(alone, together),
            together_patched=found.patched,
            together_warmup_steps=confirming and confirming.warmup_steps,
            together_steps=confirming and confirming.steps,
            not_comparable=self.learning.not_comparable,
            continue_with=self._continue_with(),
        )

    def _round(self, fixes: Sequence[Fix], tried: dict[str, TriedFix]) -> list[Fix]:
        """Tries those that are paid for, at least the first; the others are for another round."""
        learned: dict[str, Learned] = {}
        later: list[Fix] = []
        for fix in fixes:
            if learned and not self._is_paid(fix, margin=MARGIN):
                later.append(fix)
                continue
            known = self._learns(fix)
            if isinstance(known, TriedFix):
                tried[fix.name] = known
            else:
                learned[fix.name] = known
                self._fit(fix, known)
        left = [fix for fix in fixes if fix.name in learned]
        for fix in self._screened(left, learned, tried, later):
            tried[fix.name] = self._timed(fix, learned[fix.name])
            self.bench.must_confirm |= tried[fix.name].status == "kept"
        return later

    def _fit(self, fix: Fix, learned: Learned) -> None:
        """Counts as many steps as fit, once it is known what a process takes and before any is compared."""
        if self.may_fit:
            self.may_fit = False
            if fix.name in learned.switchable:  # fewer would make pairs of processes of it
                self.bench.fit(lambda: self._needed_s(fix, learned), least_steps=TOGGLED_STEPS)
            if fix.name not in learned.switchable or not self._is_paid(fix, learned, margin=SLACK):
                self.bench.fit(lambda: self._needed_s(fix, learned))
            store_options(self.bench.directory, self.bench.plan, self.bench.loss_steps)

    def _needed_s(self, fix: Fix, learned: Learned | None = None) -> float:
        """Seconds to try it and to confirm it at the first looks."""
        return needed_s(self.bench, fix, learned)

    def _is_paid(self, fix: Fix, learned: Learned | None = None, *, margin: float = 1.0) -> bool:
        needed = needed_s(self.bench, fix, learned, cautious=margin > SLACK)
        return margin * needed <= self.bench.left_s

    def _can_begin(self, fix: Fix, learned: Learned | None = None) -> bool:
        """Whether it may take what is left: all of it where nothing waits to be confirmed."""
        if self.bench.must_confirm:
            return self._is_paid(fix, learned)
        return self.bench.left_s >= self.bench.costs.process_s(self.bench.loss_steps)

    def _unpaid(
        self, fix: Fix, learned: Learned | None = None, *, verdict: Verdict | None = None
    ) -> TriedFix:
        """Its line of the ledger where the budget does not do; and it is gone on with by a larger one."""
        self.unpaid[fix.name] = fix
        bench = self.bench
        why = (
            f"out of budget: {bench.spent_s:.0f} s of {bench.budget_s or 0:.0f} s used; it needs about "
            f"{self._needed_s(fix, learned):.0f} s more"
        )
        why += f" ({showed(verdict)})" if verdict is not None else ""
        return tried_fix(fix, "not_tried", why, verdict=verdict)

    def _continue_with(self) -> str | None:
        """The command that goes on with what the budget left out."""
        if not self.unpaid:
            return None
        return self.again(budget_text(asked_s(self.bench, list(self.unpaid.values()))))

    def _with_steps(self, fix: Fix, entry: TriedFix) -> TriedFix:
        """Those of its own pairs, where it was timed."""
        if (
            entry.steps is not None
            or entry.verdict is None
            or (plan := _plan_of(self.bench, entry.verdict, [fix])) is None
        ):
            return entry
        return replace(entry, warmup_steps=plan.warmup_steps, steps=plan.steps)

    def _learns(self, fix: Fix) -> Learned | TriedFix:
        """What its losses say, or why it need not be timed."""
        bench = self.bench
        plan = bench.plan_for([fix])
        if plan is None:
            why = f"its effect shows after {fix.warmup_steps} steps, and the run was seen to make {bench.num_steps}"
            return tried_fix(fix, "not_tried", why)
        if not self._can_begin(fix):
            return self._unpaid(fix)
        try:
            learned = self.learning.of(fix.name, [fix])
        except (CommandFailed, WritesOutside) as error:
            return _failed(bench, fix, error)
        if learned.wrong is not None:
            entry = tried_fix(fix, "rejected", learned.wrong)
            return replace(entry, directory=f"{TRIALS}/{fix.name}")
        if learned.not_applied is not None:
            return tried_fix(fix, "not_applied", learned.parity.reason)
        if learned.parity.result == "different" and not fix.technique.what_if:
            why = "it learns something else: " + learned.parity.reason
            return replace(tried_fix(fix, "rejected", why), directory=f"{TRIALS}/{fix.name}")
        return learned

    def _screened(
        self,
        fixes: Sequence[Fix],
        learned: dict[str, Learned],
        tried: dict[str, TriedFix],
        later: list[Fix],
    ) -> list[Fix]:
        """Those to measure fully, the most promising first; with time enough, all of them as they are."""
        bench = self.bench
        if len(fixes) < 2 or not bench.short_s(USUAL_PAIRS * len(fixes)):
            return list(fixes)
        seen: dict[str, Verdict] = {}
        for fix in fixes:
            if seen and not self._is_paid(fix, learned[fix.name], margin=MARGIN):
                later.append(fix)
                continue
            try:
                result = self._compared(fix, learned[fix.name], SCREENING_PAIRS)
            except (CommandFailed, WritesOutside) as error:
                tried[fix.name] = _failed(bench, fix, error)
                continue
            wrong = why_wrong(fix, runs_of(result, fix))
            if wrong is not None:
                tried[fix.name] = tried_fix(fix, "rejected", wrong, verdict=result.verdict)
                continue
            seen[fix.name] = result.verdict
        promising = [fix for fix in fixes if fix.name in seen and not useless(seen[fix.name])]
        promising.sort(key=lambda fix: -(seen[fix.name].ratio or 0.0))
        for fix in fixes:
            if fix.name in seen and fix not in promising:
                why = f"not tried further: {showed(seen[fix.name])}"
                tried[fix.name] = tried_fix(fix, "not_tried", why, verdict=seen[fix.name])
        return promising

    def _timed(self, fix: Fix, learned: Learned) -> TriedFix:
        if not self._can_begin(fix, learned):
            return self._unpaid(fix, learned)
        try:
            result = self._compared(fix, learned)
        except (CommandFailed, WritesOutside) as error:
            return _failed(self.bench, fix, error)
        if is_surprising(result.verdict, fix):
            try:
                result = self._looked_into(fix, learned, result)
            except (CommandFailed, WritesOutside) as error:
                return _failed(self.bench, fix, error)
        parity = longer(learned.parity, result)
        result = replace(result, verdict=replace(result.verdict, parity=parity))
        status, why = judged(result, fix)
        if status == "not_tried":
            return self._unpaid(fix, learned, verdict=result.verdict)
        counted, bench = result.pairs[0][1].plan, self.bench
        entry = replace(
            tried_fix(fix, status, why, verdict=result.verdict),
            warmup_steps=counted.warmup_steps,
            steps=counted.steps,
        )
        if status != "kept":
            return entry
        pairs = () if result.switched else result.pairs
        return with_start_cost(
            with_memory(entry, pairs),
            pairs=pairs,
            losses=bench.first_losses(bench.with_fixes(fix.name, [fix]), [fix]),
            total_steps=bench.total_steps,
        )

    def _looked_into(self, fix: Fix, learned: Learned, result: SessionResult) -> SessionResult:
        """Over more steps, where it gains far more than was expected; with the verdict of both."""
        bench = self.bench
        over_more: SessionResult | None = None
        usual, plan = bench.plan_for([fix]), bench.plan_for([fix], times=MORE_STEPS)
        assert usual is not None
        is_more = plan is not None and plan.steps >= MORE_STEPS / 1.5 * usual.steps
        if is_more and not bench.short_s(LOOKS[0], plan=plan, place=f"{fix.name}-longer"):
            over_more = self._compared(fix, learned, times=MORE_STEPS)
        verdict = confirmed_over_more(
            result.verdict, over_more.verdict if over_more is not None else None, fix
        )
        return replace(over_more or result, verdict=verdict)

    def _compared(
        self, fix: Fix, learned: Learned, pairs_now: int | None = None, *, times: int = 1
    ) -> SessionResult:
        bench = self.bench
        return bench.compare(
            bench.baseline,
            bench.with_fixes(fix.name, [fix]),
            fixes=[fix],
            place=fix.name if times == 1 else f"{fix.name}-longer",
            times=times,
            parity_class=self.learning.class_of([fix]),
            parity=learned.parity,
            pairs_now=pairs_now,
            switched=learned.switchable & {fix.name},
            slower_start_s=learned.slower_start_s,
        )


def _plan_of(bench: Workbench, verdict: Verdict, fixes: Sequence[Fix]) -> TrialPlan | None:
    """What its processes counted."""
    return bench.switched_plan(fixes) if verdict.switched else bench.plan_for(fixes)


def _failed(bench: Workbench, fix: Fix, error: CommandFailed | WritesOutside) -> TriedFix:
    """Isolated: the rest goes on."""
    if isinstance(error, WritesOutside):
        why = f"it writes outside the working directory: {error.path}"
        return tried_fix(fix, "failed", why)
    if error.arm == BASELINE:
        why = f"not known: the unchanged command failed beside it: {error.what}"
    else:
        why = f"its trial failed: {error.what}"
    bench.warn(f"{fix.name}: {why}; the rest goes on")
    entry = tried_fix(fix, "failed", why)
    return replace(entry, details=error.do or "", directory=f"{TRIALS}/{fix.name}")


def _ledger(bench: Workbench, tried: Sequence[TriedFix] = (), **rest: Any) -> Ledger:
    network = network_of(bench.listing)
    return Ledger(
        command=bench.baseline.command,
        fixes=tuple(tried),
        warmup_steps=bench.plan.warmup_steps,
        steps=bench.plan.steps,
        wall_s=bench.spent_s,
        budget_s=bench.budget_s,
        isolation=isolation_of(bench.listing),
        network=network.unlimited or bool(network.hosts),
        network_hosts=network.hosts,
        **{"kept": (), "together": None, **rest},
    )
