"""Every fix against the unchanged command: is it faster, does it learn the same; then all that helped, as a patch.

```
losses    a baseline run and one with each fix, both drawing the same random numbers; a second baseline run
          where the narrowest band does not hold both
pairs     each fix against the unchanged command, interleaved, judged at planned looks; within each process
          where it can go on and off there. Where it is the only one, or the budget does not pay for all, the
          fix as a patch would have it, and these pairs prove it
together  the best first, each next one kept only if it is faster on top of those before it; then those
          that alone looked faster within the noise, or could not have shown what is expected of them
fresh     what is left against the unchanged command, measured anew unless one is left that is proven
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hotloop.core.census import NO_OPTIMIZER
from hotloop.core.child import IMPORTS_FILE
from hotloop.core.errors import Interrupted
from hotloop.core.files import write_json
from hotloop.core.judgement import DIAGNOSIS_FILE, Diagnosis, Final, TrialOutcome
from hotloop.core.ledger import LEDGER_FILE, Ledger, TriedFix
from hotloop.core.measurement import Measurement
from hotloop.doctor.batch_memory import batch_memory
from hotloop.doctor.budget import begin_within, by_gain_per_second, pays_for_all
from hotloop.doctor.directory import (
    TRIALS,
    begun_options,
    refuse_fewer_fixes,
    refuse_other_values,
    store_options,
)
from hotloop.doctor.fix_status import tried_fix
from hotloop.doctor.fix_trials import FixTrials
from hotloop.doctor.fixes import Fix, asked_for, fixes_for, left_out_of, machine_of, why_left_out
from hotloop.doctor.program import Examined, shown
from hotloop.doctor.starting_point import before_trials
from hotloop.doctor.trial_costs import budget_text, loss_steps, plan_for
from hotloop.doctor.trial_reports import most_children
from hotloop.doctor.trial_runner import BASELINE, TrialRunner
from hotloop.judge.loss_curves import learnt_after
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.arm import Arm
from hotloop.trial.forking import ForkServers, Imports
from hotloop.trial.measure import MEASUREMENT_FILE, load_measurement
from hotloop.trial.session import alone_in

Runner = TypeVar("Runner", bound=TrialRunner)
NEEDS_OPTIMIZER = (
    "trials are timed from one update of a torch optimizer to the next, and none was seen; "
    "`import hotloop; hotloop.step()` where a step ends makes up for it"
)


def try_fixes(
    examined: Examined,
    *,
    budget_s: float | None = None,
    only: Sequence[str] = (),
    options: Sequence[str] = (),
    again: Callable[[str], str] | None = None,
    warn: Callable[[str], None] = lambda text: None,
    **rest: Any,
) -> Ledger:
    """Try what answers the findings of a run that has ended well, and store the ledger beside it.

    options: others of the call, for the command that goes on after it; `again`: that command, where it is not
    `hotloop doctor`. rest: of `run_campaign`. Raises what `asked_for` and `run_campaign` raise, `Interrupted` with the way
    to continue among it.
    """
    measurement = load_measurement(examined.directory / MEASUREMENT_FILE)
    machine, census = machine_of(measurement), measurement.census
    asked = asked_for(only)
    fixes, left_out = _chosen(examined, measurement, asked)
    known = {*(fix.name for fix in fixes), *(entry.name for entry in left_out)}
    for name, values in asked.items():
        if name not in known:
            warn(f"{name} is not tried: {why_left_out(name, values, machine, census)}")

    def doctor_again(budget: str) -> str:
        steps = () if examined.run.steps is None else ("--steps", str(examined.run.steps))
        whole = ("--to-end",) if steps == () and examined.run.seconds is None else ()
        out = ("--out", str(shown(examined.directory)), "--budget", budget)
        given = (*(part for name in only for part in ("--only", name)), *steps, *whole, *options)
        return examined.run.again(["hotloop", "doctor", *out, *given, "--", *examined.run.command])

    try:
        ledger = run_campaign(
            examined.run.command,
            fixes,
            measurement,
            directory=examined.directory,
            workdir=Path(examined.run.workdir),
            examined_at=examined.run.started_at,
            budget_s=budget_s,
            steps=examined.run.steps,
            asked=tuple(asked),
            left_out=left_out,
            again=again or doctor_again,
            notice=_notice(examined, fixes, budget_s, asked=bool(asked)),
            warn=warn,
            **rest,
        )
    except (Interrupted, KeyboardInterrupt):
        place = shown(examined.directory)
        raise Interrupted(
            "interrupted while fixes were tried; every process has ended",
            where=str(place),
            do=f"the same command with `--out {place}` continues: finished trials are kept",
        ) from None
    write_json(examined.directory / DIAGNOSIS_FILE, with_outcomes(examined.diagnosis, ledger))
    return ledger


def _chosen(
    examined: Examined, measurement: Measurement, asked: Mapping[str, tuple[Any, ...]]
) -> tuple[tuple[Fix, ...], tuple[TriedFix, ...]]:
    """What to try, and what answers a finding and is not tried."""
    machine, census = machine_of(measurement), measurement.census
    memory = batch_memory(census, examined.directory)
    fixes = fixes_for(
        examined.diagnosis,
        machine,
        census,
        only=asked,
        num_steps=len(measurement.records),
        memory=memory,
    )
    left_out = () if asked else left_out_of(examined.diagnosis, fixes, machine, census)
    if census is not None and NO_OPTIMIZER in census.notes:
        return (), (*(tried_fix(fix, "not_tried", NEEDS_OPTIMIZER) for fix in fixes), *left_out)

    def why_not(fix: Fix) -> str | None:
        hopeless = None if asked else fix.why_hopeless
        too_large = memory.reason_not_tried(fix.technique, fix.value) if memory else None
        return hopeless or too_large

    whys = [(fix, why_not(fix)) for fix in fixes]
    left_out = (*(tried_fix(fix, "not_tried", why) for fix, why in whys if why), *left_out)
    return tuple(fix for fix, why in whys if not why), left_out


def _notice(
    examined: Examined, fixes: Sequence[Fix], budget_s: float | None, *, asked: bool
) -> str:
    """What is said before the first trial; empty where there is none."""
    if not fixes:
        return ""
    names = ", ".join(fix.name for fix in fixes)
    worth = examined.diagnosis.worth
    too_short = worth is not None and worth.answer == "leave it running" and not asked
    longer = "for longer runs than this one, " if too_short else ""
    within = "" if budget_s is None else f"within {budget_text(budget_s)}; "
    return f"{longer}testing now: {names} ({within}Ctrl-C ends it, --no-try leaves it out)"


def run_campaign(
    command: Sequence[str],
    fixes: Sequence[Fix],
    measurement: Measurement,
    *,
    directory: Path,
    workdir: Path,
    budget_s: float | None = None,
    in_place: bool = False,
    asked: Sequence[str] = (),
    left_out: Sequence[TriedFix] = (),
    again: Callable[[str], str] = lambda budget: (
        f"the same command with --out and --budget {budget}"
    ),
    notice: str = "",
    to_first_look: bool = False,
    **rest: Any,
) -> Ledger:
    """Try each fix, then together those that helped. Called again, finished trials are not repeated.

    asked: names that were asked for. left_out: what answers a finding and is not tried. again: the command that goes on
    here with such a `--budget`. notice: said before the first trial. to_first_look: of `FixTrials`. rest: `steps` of
    `runner_for`, and fields of `TrialRunner`. Raises `UsageError` for a run too short, a budget too small or a command
    that writes outside its directory, and `CommandFailed` where the baseline fails.
    """
    refuse_fewer_fixes(directory, fixes)
    if fixes:
        begun = begun_options(directory, in_place=in_place)
        runner = runner_for(
            TrialRunner,
            Arm(BASELINE, tuple(command), "step_clock", workdir=workdir, sandboxed=True),
            measurement,
            directory=directory,
            begun=begun,
            in_place=in_place,
            budget_s=budget_s,
            **rest,
        )
        trials = partial(FixTrials, all_asked=bool(asked), again=again, to_first_look=to_first_look)
        ledger = _tried(runner, fixes, begun, notice=notice, again=again, trials=trials)
    else:  # nothing answers what was found: however short the run, that is an answer
        ledger = Ledger(tuple(command), (), (), None, 0, 0, 0.0, budget_s)
    ledger = replace(ledger, fixes=(*ledger.fixes, *left_out), asked=tuple(asked))
    write_json(directory / LEDGER_FILE, ledger)
    return ledger


def runner_for(
    make: Callable[..., Runner],
    baseline: Arm,
    measurement: Measurement,
    *,
    directory: Path,
    begun: Mapping[str, int],
    steps: int | None = None,
    in_place: bool = False,
    **rest: Any,
) -> Runner:
    """Runs trials of an examined command, planned by its `measurement`.

    begun: options of an earlier call. rest: other fields of what `make` makes. Raises `UsageError` for a run too short.
    """
    plan, costs = plan_for(measurement, steps=steps)
    # In all, where it ended by itself or says so.
    total_steps = measurement.census.planned_steps if measurement.census is not None else None
    if measurement.returncode == 0:
        total_steps = len(measurement.records)
    return make(
        baseline,
        replace(plan, in_place=in_place, steps=begun.get("steps", plan.steps)),
        costs,
        directory,
        begun.get("loss_steps", loss_steps(measurement)),
        len(measurement.records),
        total_steps=total_steps,
        most_children=most_children(measurement),
        learnt_steps=learnt_after(measurement.records),
        census=measurement.census,
        servers=ForkServers(
            Imports.read(directory / IMPORTS_FILE), directory / TRIALS / "fork-servers"
        ),
        **rest,
    )


def _tried(
    runner: TrialRunner,
    fixes: Sequence[Fix],
    begun: Mapping[str, int],
    *,
    notice: str,
    again: Callable[[str], str],
    trials: Callable[..., FixTrials],
) -> Ledger:
    """Each and together. begun: options of an earlier call, which this one continues."""
    directory = runner.directory
    directory.mkdir(parents=True, exist_ok=True)
    with alone_in(directory):
        refuse_other_values(directory, fixes)
        runner.at_once = bool(begun.get("at_once", not pays_for_all(runner, fixes)))
        if runner.budget_s is not None:
            fixes = by_gain_per_second(runner, fixes)
            if "loss_steps" not in begun:
                begin_within(runner, fixes, again)
        for said in (*filter(None, [notice]), *before_trials(directory, runner.listing)):
            runner.warn(said)
        runner.report(fixes=tuple(fix.name for fix in fixes))
        store_options(directory, runner.plan, runner.loss_steps, at_once=runner.at_once)
        continued = any((directory / TRIALS).glob(f"*/*/{MEASUREMENT_FILE}"))
        try:
            ledger = trials(runner, fixes, may_fit="steps" not in begun).all()
        finally:
            runner.servers.close()
        return replace(ledger, continued=continued, forked=runner.servers.num_served > 0)


def with_outcomes(diagnosis: Diagnosis, ledger: Ledger) -> Diagnosis:
    """The diagnosis with an entry for each fix of the ledger that was begun, and with what was kept."""
    begun = (fix for fix in ledger.fixes if fix.status != "not_tried")
    return replace(diagnosis, trials=tuple(map(_outcome, begun)), final=_final(ledger))


def _outcome(fix: TriedFix) -> TrialOutcome:
    verdict, technique = fix.verdict, CATALOGUE.get(fix.name)
    setting = {(technique and technique.argument) or fix.name: fix.value}
    if technique is not None and technique.setting is not None and fix.value is not None:
        setting = technique.setting(fix.value)
    return TrialOutcome(
        optimization=fix.name,
        setting=setting,
        outcome=verdict.outcome if verdict is not None else "inconclusive",
        ratio=verdict.ratio if verdict is not None else None,
        ratio_low=verdict.ratio_low if verdict is not None else None,
        ratio_high=verdict.ratio_high if verdict is not None else None,
        parity=verdict.parity.result if verdict is not None else "not_checked",
        kept=fix.status == "kept",
        reason=fix.why,
        status=fix.status,
    )


def _final(ledger: Ledger) -> Final:
    together = ledger.together
    if not ledger.kept or together is None:
        return Final(None, None, None, kept=(), parity="not_checked")
    return Final(
        together.ratio,
        together.ratio_low,
        together.ratio_high,
        kept=ledger.kept,
        parity=together.parity.result,
        outcome=together.outcome,
    )
