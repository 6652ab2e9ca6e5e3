"""Every fix against the command as it is: does it learn the same, is it faster; then all that helped, together.

```
losses    two runs as it is and one with each fix, all drawing the same random numbers
noise     the command with itself, once for all
screening two pairs of each, only where the budget cannot pay for all
pairs     each fix against the command as it is, interleaved, judged at planned looks; within each process
          where it can go on and off there
together  the best first, each next one kept only if it is faster on top of those before it; then those
          that alone looked faster within the noise, or could not have shown what is expected of them
fresh     what is left against the command as it is, measured anew: the one number to believe
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop.core.errors import CommandFailed
from hotloop.core.files import write_json
from hotloop.core.judgement import Verdict
from hotloop.core.ledger import LEDGER_FILE, Ledger, TriedFix
from hotloop.core.measurement import Measurement
from hotloop.core.progress import Progress, silent
from hotloop.doctor.applied import why_wrong
from hotloop.doctor.budget import asked_s, begin_within, needed_s
from hotloop.doctor.continuing import (
    begun_options,
    refuse_fewer_fixes,
    refuse_other_values,
    store_options,
)
from hotloop.doctor.deciding import (
    judged,
    longer,
    may_yet,
    pooled_ratio,
    runs_of,
    showed,
    tried_fix,
    useless,
)
from hotloop.doctor.directory import TRIALS
from hotloop.doctor.fixes import Fix
from hotloop.doctor.learning import Learned, Learning
from hotloop.doctor.plausible import confirmed_over_more, is_surprising
from hotloop.doctor.stacking import order_of, stack
from hotloop.doctor.start_cost import with_start_cost
from hotloop.doctor.starting_point import cut_off, isolation_of, reaches_network, weak_isolation
from hotloop.doctor.switched import most_children
from hotloop.doctor.trial_costs import (
    LOOKS,
    MARGIN,
    SLACK,
    TOGGLED_STEPS,
    USUAL_PAIRS,
    budget_text,
    loss_steps,
    plan_for,
)
from hotloop.doctor.workbench import AS_IT_IS, Workbench, is_about_baseline
from hotloop.doctor.writes import WritesOutside
from hotloop.judge.levels import learnt_after
from hotloop.trial.arm import Arm
from hotloop.trial.measure import MEASUREMENT_FILE
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import SessionResult, alone_in

SCREENING_PAIRS = 2
MORE_STEPS = 2
"""Times as many, to look into a gain that was not expected."""


def verify(
    command: Sequence[str],
    fixes: Sequence[Fix],
    measurement: Measurement,
    *,
    directory: Path,
    workdir: Path,
    examined_at: float = math.inf,
    budget_s: float | None = None,
    steps: int | None = None,
    in_place: bool = False,
    network: bool = False,
    asked: Sequence[str] = (),
    left_out: Sequence[TriedFix] = (),
    again: Callable[[str], str] = lambda budget: (
        f"the same command with --out and --budget {budget}"
    ),
    notice: str = "",
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda text: None,
) -> Ledger:
    """Try each fix, then together those that helped. Called again, finished trials are not repeated.

    examined_at: when the command was started that `measurement` is of. directory: the doctor's, where `trials/` and
    `ledger.json` go. network: trials may reach other machines. asked: names that were asked for. left_out:
    entries of the ledger for what answers a finding and is not tried. again: the command that goes on here with
    such a `--budget`. notice: said before the first trial.
    A fix whose trial fails is reported, and the rest goes on. Raises `UsageError` for a run too short, a
    budget too small or a command that writes outside its directory, and `CommandFailed` where the command
    as it is fails.
    """
    refuse_fewer_fixes(directory, fixes)
    if not fixes:  # nothing answers what was found: however short the run, that is an answer
        ledger = Ledger(
            tuple(command), tuple(left_out), (), None, 0, 0, 0.0, budget_s, asked=tuple(asked)
        )
        write_json(directory / LEDGER_FILE, ledger)
        return ledger
    plan, costs = plan_for(measurement, steps=steps)
    begun = begun_options(directory, in_place=in_place)
    bench = Workbench(
        Arm(AS_IT_IS, tuple(command), "step_clock", workdir=workdir, fenced=True),
        replace(plan, in_place=in_place, steps=begun.get("steps", plan.steps)),
        costs,
        directory,
        begun.get("loss_steps", loss_steps(measurement)),
        len(measurement.records),
        total_steps=_total_steps(measurement),
        most_children=most_children(measurement),
        learnt_steps=learnt_after(measurement.records),
        census=measurement.census,
        examined_at=examined_at,
        budget_s=budget_s,
        progress=progress,
        warn=warn,
        network=network,
    )
    directory.mkdir(parents=True, exist_ok=True)
    with alone_in(directory):
        refuse_other_values(directory, fixes)
        if budget_s is not None and "loss_steps" not in begun:
            begin_within(bench, fixes, again)
        for said in (notice, weak_isolation(bench.listing), cut_off(directory, bench.listing)):
            if said:
                warn(said)
        store_options(directory, bench.plan, bench.loss_steps)
        continued = any((directory / TRIALS).glob(f"*/*/{MEASUREMENT_FILE}"))
        trying = _Trying(bench, may_fit="steps" not in begun, again=again)
        ledger = trying.all(fixes)
        ledger = replace(
            ledger,
            fixes=(*ledger.fixes, *left_out),
            continued=continued,
            asked=tuple(asked),
        )
        write_json(directory / LEDGER_FILE, ledger)
    return ledger


def _total_steps(measurement: Measurement) -> int | None:
    """That the command makes, where it ended by itself or says so."""
    if measurement.returncode == 0:
        return len(measurement.records)
    return measurement.census.planned_steps if measurement.census is not None else None


class _Trying:
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
        return with_start_cost(
            entry,
            pairs=() if result.switched else result.pairs,
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
    if is_about_baseline(error):
        why = f"not known: the command as it is failed beside it: {error.what}"
    else:
        why = f"its trial failed: {error.what}"
    bench.warn(f"{fix.name}: {why}; the rest goes on")
    entry = tried_fix(fix, "failed", why)
    return replace(entry, details=error.do or "", directory=f"{TRIALS}/{fix.name}")


def _ledger(bench: Workbench, tried: Sequence[TriedFix] = (), **rest: Any) -> Ledger:
    return Ledger(
        command=bench.baseline.command,
        fixes=tuple(tried),
        warmup_steps=bench.plan.warmup_steps,
        steps=bench.plan.steps,
        wall_s=bench.spent_s,
        budget_s=bench.budget_s,
        isolation=isolation_of(bench.listing),
        network=reaches_network(bench.listing),
        **{"kept": (), "together": None, **rest},
    )
