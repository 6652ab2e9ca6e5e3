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
from hotloop.doctor.continuing import refuse_fewer_fixes, refuse_other_options
from hotloop.doctor.deciding import judged, longer, may_yet, runs_of, showed, tried_fix, useless
from hotloop.doctor.directory import TRIALS
from hotloop.doctor.fixes import Fix
from hotloop.doctor.learning import Learned, Learning
from hotloop.doctor.stacking import order_of, stack
from hotloop.doctor.switched import most_children
from hotloop.doctor.trial_costs import LOOKS, LOSS_RUNS, USUAL_PAIRS, fitted, loss_steps, plan_for
from hotloop.doctor.workbench import AS_IT_IS, Workbench, is_about_baseline
from hotloop.doctor.writes import WritesOutside
from hotloop.optimizations.catalogue import parity_of_live
from hotloop.trial.arm import Arm
from hotloop.trial.measure import MEASUREMENT_FILE
from hotloop.trial.plan import TrialPlan
from hotloop.trial.session import SessionResult, alone_in

SCREENING_PAIRS = 2


def verify(
    command: Sequence[str],
    fixes: Sequence[Fix],
    measurement: Measurement,
    *,
    directory: Path,
    workdir: Path,
    budget_s: float | None = None,
    steps: int | None = None,
    in_place: bool = False,
    asked: Sequence[str] = (),
    left_out: Sequence[TriedFix] = (),
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda text: None,
) -> Ledger:
    """Try each fix, then together those that helped. Called again, finished trials are not repeated.

    directory: the doctor's, where `trials/` and `ledger.json` go. asked: names that were asked for. left_out:
    entries of the ledger for what answers a finding and is not tried.
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
    losses = loss_steps(measurement)
    if budget_s is not None:
        plan, losses = fitted(plan, costs, losses, budget_s)
    bench = Workbench(
        Arm(AS_IT_IS, tuple(command), "step_clock", workdir=workdir, fenced=True),
        replace(plan, in_place=in_place),
        costs,
        directory,
        losses,
        len(measurement.records),
        most_children=most_children(measurement),
        budget_s=budget_s,
        progress=progress,
        warn=warn,
    )
    directory.mkdir(parents=True, exist_ok=True)
    with alone_in(directory):
        refuse_other_options(directory, bench.plan, budget_s=budget_s, fixes=fixes)
        continued = any((directory / TRIALS).glob(f"*/*/{MEASUREMENT_FILE}"))
        ledger = _Trying(bench).all(fixes)
        ledger = replace(
            ledger,
            fixes=(*ledger.fixes, *left_out),
            continued=continued,
            asked=tuple(asked),
        )
        write_json(directory / LEDGER_FILE, ledger)
    return ledger


class _Trying:
    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.learning = Learning(bench)
        if self.learning.not_comparable is not None:
            bench.warn(
                f"its steps are not comparable from run to run: {self.learning.not_comparable}"
            )

    def all(self, fixes: Sequence[Fix]) -> Ledger:
        tried: dict[str, TriedFix] = {}
        learned: dict[str, Learned] = {}
        for fix in fixes:
            known = self._learns(fix)
            if isinstance(known, TriedFix):
                tried[fix.name] = known
            else:
                learned[fix.name] = known
        left = [fix for fix in fixes if fix.name in learned]
        for fix in self._screened(left, learned, tried):
            tried[fix.name] = self._timed(fix, learned[fix.name])
        kept = [fix for fix in fixes if tried[fix.name].status == "kept"]
        undecided = [fix for fix in fixes if may_yet(tried[fix.name])]
        order = order_of(kept, undecided, tried)
        names, together = stack(self.bench, self.learning, kept, tried, undecided)
        stacked = _stacked(order, tried) if together is not None else []
        confirming = together and _plan_of(self.bench, together, stacked)
        return _ledger(
            self.bench,
            [self._with_steps(fix, tried[fix.name]) for fix in fixes],
            kept=names,
            together=together,
            together_warmup_steps=confirming and confirming.warmup_steps,
            together_steps=confirming and confirming.steps,
            not_comparable=self.learning.not_comparable,
        )

    def _with_steps(self, fix: Fix, entry: TriedFix) -> TriedFix:
        """Those of its own pairs, where it was timed."""
        if entry.verdict is None or (plan := _plan_of(self.bench, entry.verdict, [fix])) is None:
            return entry
        return replace(entry, warmup_steps=plan.warmup_steps, steps=plan.steps)

    def _learns(self, fix: Fix) -> Learned | TriedFix:
        """What its losses say, or why it need not be timed."""
        bench = self.bench
        plan = bench.plan_for([fix])
        if plan is None:
            why = f"its effect shows after {fix.warmup_steps} steps, and the run was seen to make {bench.num_steps}"
            return tried_fix(fix, "not_tried", why)
        # One that shows late needs longer runs as it is, too.
        longer_runs = bench.loss_steps_of([fix]) / bench.loss_steps
        losses = 1 if longer_runs == 1 else math.ceil((LOSS_RUNS + 1) * longer_runs)
        if short_s := bench.short_s(LOOKS[0], losses=losses, plan=plan):
            why = f"the budget was spent: to try it takes about {math.ceil(short_s)} s more"
            return tried_fix(fix, "not_tried", why)
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
        self, fixes: Sequence[Fix], learned: dict[str, Learned], tried: dict[str, TriedFix]
    ) -> list[Fix]:
        """Those to measure fully, the most promising first; with time enough, all of them as they are."""
        bench = self.bench
        if len(fixes) < 2 or not bench.short_s(USUAL_PAIRS * len(fixes)):
            return list(fixes)
        seen: dict[str, Verdict] = {}
        for fix in fixes:
            if bench.short_s(LOOKS[0]):
                tried[fix.name] = tried_fix(fix, "not_tried", "the budget was spent")
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
        going: list[Fix] = []
        for fix in promising:
            # What comes before it in the list is paid for first.
            if going and bench.short_s((LOOKS[0] - SCREENING_PAIRS) * (len(going) + 1)):
                why = f"not tried further, the budget was spent: {showed(seen[fix.name])}"
                tried[fix.name] = tried_fix(fix, "not_tried", why, verdict=seen[fix.name])
            else:
                going.append(fix)
        return going

    def _timed(self, fix: Fix, learned: Learned) -> TriedFix:
        if self.bench.short_s(LOOKS[0] - SCREENING_PAIRS, slower_start_s=learned.slower_start_s):
            return tried_fix(fix, "not_tried", "the budget was spent before it was timed")
        try:
            result = self._compared(fix, learned)
        except (CommandFailed, WritesOutside) as error:
            return _failed(self.bench, fix, error)
        parity = longer(learned.parity, result)
        result = replace(result, verdict=replace(result.verdict, parity=parity))
        status, why = judged(result, fix)
        return tried_fix(fix, status, why, verdict=result.verdict)

    def _compared(self, fix: Fix, learned: Learned, pairs_now: int | None = None) -> SessionResult:
        bench = self.bench
        return bench.compare(
            bench.baseline,
            bench.with_fixes(fix.name, [fix]),
            fixes=[fix],
            place=fix.name,
            parity_class=parity_of_live([fix.name]),
            parity=learned.parity,
            pairs_now=pairs_now,
            switched=learned.switchable & {fix.name},
            slower_start_s=learned.slower_start_s,
        )


def _plan_of(bench: Workbench, verdict: Verdict, fixes: Sequence[Fix]) -> TrialPlan | None:
    """What its processes counted."""
    return bench.switched_plan(fixes) if verdict.switched else bench.plan_for(fixes)


def _stacked(order: Sequence[Fix], tried: dict[str, TriedFix]) -> list[Fix]:
    """Those that fresh pairs were made of, confirmed or not: the best, and each that was faster on top."""
    first, *others = order
    added = {fix.name: tried[fix.name].added for fix in others}
    on_top = [fix for fix in others if (it := added[fix.name]) and it.outcome == "improved"]
    return [first, *on_top]


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
        **{"kept": (), "together": None, **rest},
    )
