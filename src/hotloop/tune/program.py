"""`hotloop tune -- COMMAND`: examined like the doctor's, then tried with other values of its own options."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hotloop import __version__
from hotloop.core.census import NO_OPTIMIZER
from hotloop.core.child import IMPORTS_FILE
from hotloop.core.command_run import COMMAND_RUN_FILE
from hotloop.core.connections import Network
from hotloop.core.errors import Interrupted, UsageError
from hotloop.core.files import write_json
from hotloop.core.ledger import LEDGER_FILE, Ledger
from hotloop.core.progress import ShowTrials
from hotloop.doctor.command import script_name
from hotloop.doctor.directory import TRIALS, begun_options, mapping_of, store_options
from hotloop.doctor.fix_campaign import NEEDS_OPTIMIZER
from hotloop.doctor.program import Examined, shown
from hotloop.doctor.starting_point import BEFORE, cut_off, weak_isolation
from hotloop.doctor.trial_costs import FIRST_PAIRS, loss_steps, plan_for
from hotloop.doctor.trial_reports import most_children
from hotloop.doctor.trial_runner import BASELINE
from hotloop.hardware.environment import read_host
from hotloop.judge.looks import LOOKS
from hotloop.trial.arm import Arm
from hotloop.trial.forking import ForkServers, Imports
from hotloop.trial.measure import MEASUREMENT_FILE, load_measurement
from hotloop.trial.session import alone_in
from hotloop.tune.campaign import Campaign
from hotloop.tune.options import Option
from hotloop.tune.runner import OptionRunner, value_of, work_of

MACHINE_KEYS = ("cpu_model", "cpu_quota", "memory_limit_bytes", "platform")
MOST_DIRECTORIES = 1000


def run_directory(command: Sequence[str]) -> Path:
    """`runs/tune-NAME`, where the same command was tuned on this machine and its sources are as they were; else the
    next that is not there."""
    for number in range(1, MOST_DIRECTORIES):
        end = "" if number == 1 else f"-{number}"
        directory = Path("runs") / f"tune-{script_name(command)}{end}"
        if not directory.exists() or _is_same(directory, command):
            return directory
    raise UsageError(
        "too many run directories", where="runs", do="remove some, or name one with --out"
    )


def _is_same(directory: Path, command: Sequence[str]) -> bool:
    stored = mapping_of(directory / COMMAND_RUN_FILE)
    same = [stored.get(name) for name in ("command", "workdir", "hotloop", "steps")]
    if same != [list(command), str(Path.cwd()), __version__, None]:
        return False
    if stored.get("ended") == "interrupted" and not (directory / TRIALS).exists():
        return True  # it is set aside
    if not (directory / MEASUREMENT_FILE).exists():
        return False
    before, now = mapping_of(directory / "environment.json"), read_host()
    if any(before.get(key) != getattr(now, key) for key in MACHINE_KEYS):
        return False
    kept = directory / BEFORE / "files"
    return all(_is_as_kept(each, each.relative_to(kept)) for each in kept.rglob("*.py"))


def _is_as_kept(kept: Path, file: Path) -> bool:
    return file.is_file() and file.read_bytes() == kept.read_bytes()


def tune(
    examined: Examined,
    options: Sequence[Option],
    *,
    budget_s: float,
    network: Network,
    again: Callable[[str], str],
    show: ShowTrials,
    warn: Callable[[str], None],
) -> Ledger:
    """Try the values within `budget_s` seconds, and store the ledger. Called again, finished trials are not repeated.

    again: the command that goes on with such a `--budget`. Raises `UsageError` for a run that is too short, or whose
    steps cannot be compared; `BudgetTooSmall`, `CommandFailed` and `Interrupted` as the doctor does.
    """
    directory, command = examined.directory, examined.run.command
    measurement = load_measurement(directory / MEASUREMENT_FILE)
    census = measurement.census
    if census is not None and NO_OPTIMIZER in census.notes:
        raise UsageError(NEEDS_OPTIMIZER)
    work = work_of(options, command, ())
    if any(each.scales for each in options) and not work.amounts:
        loads = census is not None and any(each.trains for each in census.loaders)
        missing = [each.name for each in options if each.scales and each.given(command) is None]
        if missing and (not loads or not work.env):
            raise UsageError(
                f"how much larger a step becomes is not known: the command as given has no {' and no '.join(missing)}"
                + ("" if loads else ", and no DataLoader gives it batches"),
                do="write the script's own default into the command, too, so that steps are compared by their work",
            )
    plan, costs = plan_for(measurement, steps=None)
    begun = begun_options(directory, in_place=False)
    values = [
        value_of(option, text, examined.diagnosis) for option in options for text in option.values
    ]
    values.sort(key=lambda value: -(value.gain_at_most or 1.0))
    runner = OptionRunner(
        Arm(
            BASELINE,
            tuple(command),
            "step_clock",
            env=work.env,
            workdir=Path(examined.run.workdir),
            sandboxed=True,
            **work.amounts,
        ),
        replace(plan, steps=begun.get("steps", plan.steps)),
        costs,
        directory,
        begun.get("loss_steps", loss_steps(measurement)),
        len(measurement.records),
        total_steps=len(measurement.records)
        if measurement.returncode == 0
        else census and census.planned_steps,
        most_children=most_children(measurement),
        census=census,
        examined_at=examined.run.started_at,
        budget_s=None if math.isinf(budget_s) else budget_s,
        show=show,
        warn=warn,
        network=network,
        servers=ForkServers(
            Imports.read(directory / IMPORTS_FILE), directory / TRIALS / "fork-servers"
        ),
        options=options,
    )
    try:
        with alone_in(directory):
            for said in (weak_isolation(runner.listing), cut_off(directory, runner.listing)):
                if said:
                    warn(said)
            if "steps" not in begun:
                pairs = FIRST_PAIRS * len(values) + LOOKS[0] * (1 + min(len(options), 2))
                runner.fit(
                    lambda: runner.needed_s(pairs, losses=1 + len(options), reserved=False) / 2
                )
                store_options(directory, runner.plan, runner.loss_steps)
            runner.report(fixes=tuple(value.name for value in values))
            try:
                ledger = Campaign(runner, values, again).all()
            finally:
                runner.servers.close()
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(
            "interrupted; every process has ended",
            where=str(shown(directory)),
            do="the same command again continues: finished trials are kept",
        ) from None
    ledger = replace(ledger, continued=bool(begun), forked=runner.servers.num_served > 0)
    write_json(directory / LEDGER_FILE, ledger)
    return ledger
