"""Every fix against the unchanged command: does it learn the same, is it faster; then all that helped, together.

```
losses    two baseline runs and one with each fix, all drawing the same random numbers
noise     the command with itself, once for all
pairs     each fix against the unchanged command, interleaved, judged at planned looks; within each process
          where it can go on and off there. Where it is the only one, or the budget does not pay for all, the
          fix as a patch would have it, and these pairs prove it
together  the best first, each next one kept only if it is faster on top of those before it; then those
          that alone looked faster within the noise, or could not have shown what is expected of them
fresh     what is left against the unchanged command, measured anew unless one is left that is proven
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hotloop.core.connections import NO_NETWORK, Network
from hotloop.core.files import write_json
from hotloop.core.ledger import LEDGER_FILE, Ledger, TriedFix
from hotloop.core.measurement import Measurement
from hotloop.core.progress import Progress, silent
from hotloop.doctor.budget import begin_within, by_gain_per_second, pays_for_all
from hotloop.doctor.directory import TRIALS
from hotloop.doctor.fix_trials import FixTrials
from hotloop.doctor.fixes import Fix
from hotloop.doctor.resumption import (
    begun_options,
    refuse_fewer_fixes,
    refuse_other_values,
    store_options,
)
from hotloop.doctor.starting_point import cut_off, weak_isolation
from hotloop.doctor.switched import most_children
from hotloop.doctor.trial_costs import (
    loss_steps,
    plan_for,
)
from hotloop.doctor.workbench import BASELINE, Workbench
from hotloop.judge.levels import learnt_after
from hotloop.trial.arm import Arm
from hotloop.trial.measure import MEASUREMENT_FILE
from hotloop.trial.session import alone_in


def run_trials(
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
    network: Network = NO_NETWORK,
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
    `ledger.json` go. network: what trials may reach. asked: names that were asked for. left_out:
    entries of the ledger for what answers a finding and is not tried. again: the command that goes on here with
    such a `--budget`. notice: said before the first trial.
    A fix whose trial fails is reported, and the rest goes on. Raises `UsageError` for a run too short, a
    budget too small or a command that writes outside its directory, and `CommandFailed` where the baseline fails.
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
        Arm(BASELINE, tuple(command), "step_clock", workdir=workdir, fenced=True),
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
        bench.at_once = bool(begun.get("at_once", not pays_for_all(bench, fixes)))
        if budget_s is not None:
            fixes = by_gain_per_second(bench, fixes)
        if budget_s is not None and "loss_steps" not in begun:
            begin_within(bench, fixes, again)
        for said in (notice, weak_isolation(bench.listing), cut_off(directory, bench.listing)):
            if said:
                warn(said)
        store_options(directory, bench.plan, bench.loss_steps, at_once=bench.at_once)
        continued = any((directory / TRIALS).glob(f"*/*/{MEASUREMENT_FILE}"))
        trying = FixTrials(bench, may_fit="steps" not in begun, again=again)
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
    """Steps that the command makes in all, where it ended by itself or says so."""
    if measurement.returncode == 0:
        return len(measurement.records)
    return measurement.census.planned_steps if measurement.census is not None else None
