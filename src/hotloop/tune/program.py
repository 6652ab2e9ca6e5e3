"""`hotloop tune -- COMMAND`: a command that was examined as by the doctor, with other values of its own options."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop.core.census import NO_OPTIMIZER
from hotloop.core.errors import Interrupted, UsageError
from hotloop.core.files import write_json
from hotloop.core.ledger import LEDGER_FILE, Ledger
from hotloop.doctor.budget import fit_losses
from hotloop.doctor.directory import begun_options, begun_run, store_options, was_interrupted
from hotloop.doctor.fix_campaign import NEEDS_OPTIMIZER, runner_for
from hotloop.doctor.program import Examined, shown
from hotloop.doctor.starting_point import before_trials, edited_since
from hotloop.doctor.trial_runner import BASELINE
from hotloop.trial.arm import Arm
from hotloop.trial.measure import MEASUREMENT_FILE, load_measurement
from hotloop.trial.session import alone_in
from hotloop.tune.campaign import Campaign, likeliest_first
from hotloop.tune.options import Option
from hotloop.tune.runner import OptionRunner, value_of, with_work, work_of
from hotloop.tune.value_trials import ValueTrials


def run_directory(
    command: Sequence[str],
    name: str,
    say: Callable[[str], None],
    kind: str = "tune",
    *,
    anew: bool = False,
) -> Path:
    """`runs/KIND-NAME` where it goes on: the same command, machine and sources, the newest; else the next that is not there, and why is said.

    anew: only what was interrupted before it had a ledger goes on.
    """
    why, ends = "", ("" if number == 1 else f"-{number}" for number in itertools.count(1))
    places = (Path("runs") / f"{kind}-{name}{end}" for end in ends)
    there: list[Path] = []
    while (new := next(places)).exists():
        there.append(new)
    for directory in reversed(there):
        if anew and (directory / LEDGER_FILE).exists():
            break
        try:
            if was_interrupted(directory, command):
                return directory
            run = begun_run(directory, command, steps=None)
            if run and not edited_since(directory):
                return directory
            of_others = "was made of other sources"
            of_use = "is in use, or its command was cut off"
            why = why or f"{directory} {of_others if run else of_use}"
        except UsageError as error:
            why = why or error.what.replace("this directory", str(directory))
    if why:
        say(f"{why}: this begins in {new}")
    return new


def tune(
    examined: Examined,
    rounds: Sequence[Sequence[Option]],
    again: Callable[[str], str],
    work: Callable[[Arm], Arm] | None = None,
    told: Callable[[Ledger], Ledger] = lambda ledger: ledger,
    campaign: type[ValueTrials] = Campaign,
    **rest: Any,
) -> Ledger:
    """Try the values, and store the ledger. Called again, finished trials are not repeated.

    rounds: options; those of a later round are tried on top of what the ones before left. again: the command that goes on
    with such a `--budget`. work: says what a step of a command is. told: makes the ledger what is stored. campaign: decides
    which are tried, against what. rest: of `OptionRunner`. Raises `UsageError` for a run that is too short or whose steps cannot be compared, and what trials raise,
    `Interrupted` with the way to go on among it.
    """
    directory, workdir = examined.directory, Path(examined.run.workdir)
    measurement = load_measurement(directory / MEASUREMENT_FILE)
    census = measurement.census
    if census is not None and NO_OPTIMIZER in census.notes:
        raise UsageError(NEEDS_OPTIMIZER)
    options = [option for each in rounds for option in each]
    arm = Arm(BASELINE, examined.run.command, "step_clock", workdir=workdir, sandboxed=True)
    baseline = with_work(arm, options) if work is None else work(arm)
    names = [each.name for each in options if each.known.scales]
    # DataLoaders show samples by themselves, tokens they do not.
    is_seen = all(each.known.scales != "tokens" for each in options)
    is_seen &= census is not None and any(each.trains for each in census.loaders)
    if names and not work_of(baseline) and not is_seen:
        raise UsageError(
            f"the work of a step is not known: the command does not say a number for {' and '.join(names)}",
            do="write the script's own default into the command too, so that steps are compared by their work",
        )
    begun = begun_options(directory, in_place=False)
    how = {"directory": directory, "begun": begun, "options": options, "with_work": work, **rest}
    runner = runner_for(OptionRunner, baseline, measurement, **how)
    if "steps" not in begun:  # first: which options are the likeliest depends on what a trial takes
        pairs, losses = campaign.planned(sum(len(o.values) for o in options), len(options))
        runner.fit(lambda: runner.needed_s(pairs, losses=losses, reserved=False) / 2)
    values = [
        [value_of(o, text, examined.diagnosis, census) for o in each for text in o.values]
        for each in (likeliest_first(runner, each, examined.diagnosis) for each in rounds)
    ]
    try:
        with alone_in(directory), closing(runner.servers):
            for said in before_trials(directory, runner.listing):
                runner.warn(said)
            trials = campaign(runner, values, again)
            if "steps" not in begun:
                fit_losses(runner, lambda: sum(map(trials.proof_s, trials.values[:1])))
                store_options(directory, runner.plan, runner.loss_steps)
            runner.report(fixes=tuple(value.name for each in values for value in each))
            ledger = trials.all()
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(
            "interrupted; every process has ended",
            where=str(shown(directory)),
            do="the same command again continues: finished trials are kept",
        ) from None
    ledger = told(replace(ledger, continued=bool(begun), forked=runner.servers.num_served > 0))
    write_json(directory / LEDGER_FILE, ledger)
    return ledger
