"""The treatment: fixes tried on a command that was examined, and what is kept written as a patch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from hotloop.core.census import NO_OPTIMIZER
from hotloop.core.connections import NO_NETWORK, Network
from hotloop.core.errors import Interrupted
from hotloop.core.files import write_json
from hotloop.core.judgement import DIAGNOSIS_FILE
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.progress import Progress, silent
from hotloop.doctor.fix_status import tried_fix
from hotloop.doctor.fixes import asked_for, fixes_for, left_out_of, machine_of, why_left_out
from hotloop.doctor.outcomes import with_outcomes
from hotloop.doctor.patch.write import Patch, write_patch
from hotloop.doctor.program import Examined, shown
from hotloop.doctor.run_trials import run_trials
from hotloop.doctor.trial_costs import budget_text
from hotloop.trial.measure import MEASUREMENT_FILE, load_measurement


def try_fixes(
    examined: Examined,
    *,
    budget_s: float | None = None,
    only: Sequence[str] = (),
    in_place: bool = False,
    network: Network = NO_NETWORK,
    options: Sequence[str] = (),
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda text: None,
) -> Ledger:
    """Try what answers the findings of a run that has ended well, and store the ledger beside it.

    options: others of the call, for the command that goes on after it. Raises what `asked_for` and `run_trials` raise, `Interrupted` with the way to continue among it.
    """
    measurement = load_measurement(examined.directory / MEASUREMENT_FILE)
    machine, census = machine_of(measurement), measurement.census
    asked = asked_for(only)
    fixes = fixes_for(
        examined.diagnosis, machine, census, only=asked, num_steps=len(measurement.records)
    )
    left_out: tuple[TriedFix, ...] = (
        () if asked else left_out_of(examined.diagnosis, fixes, machine, census)
    )
    if census is not None and NO_OPTIMIZER in census.notes:
        why = (
            "trials are timed from one update of a torch optimizer to the next, and none was seen; "
            "`import hotloop; hotloop.step()` where a step ends makes up for it"
        )
        left_out = (*(tried_fix(fix, "not_tried", why) for fix in fixes), *left_out)
        fixes = ()
    known = {*(fix.name for fix in fixes), *(entry.name for entry in left_out)}
    for name, values in asked.items():
        if name not in known:
            warn(f"{name} is not tried: {why_left_out(name, values, machine, census)}")

    notice = ""
    if fixes:
        names = ", ".join(fix.name for fix in fixes)
        longer = "for longer runs than this one, " if _is_not_worth(examined) and not asked else ""
        within = "" if budget_s is None else f"within {budget_text(budget_s)}; "
        notice = f"{longer}testing now: {names} ({within}Ctrl-C ends it, --no-try leaves it out)"

    def again(budget: str) -> str:
        steps = () if examined.run.steps is None else ("--steps", str(examined.run.steps))
        whole = ("--to-end",) if steps == () and examined.run.seconds is None else ()
        out = ("--out", str(shown(examined.directory)), "--budget", budget)
        given = (*(part for name in only for part in ("--only", name)), *steps, *whole, *options)
        return shlex.join(["hotloop", "doctor", *out, *given, "--", *examined.run.command])

    try:
        ledger = run_trials(
            examined.run.command,
            fixes,
            measurement,
            directory=examined.directory,
            workdir=Path(examined.run.workdir),
            examined_at=examined.run.started_at,
            budget_s=budget_s,
            steps=examined.run.steps,
            in_place=in_place,
            network=network,
            asked=tuple(asked),
            left_out=left_out,
            again=again,
            notice=notice,
            progress=progress,
            warn=warn,
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


def _is_not_worth(examined: Examined) -> bool:
    worth = examined.diagnosis.worth
    return worth is not None and worth.answer == "leave it running"


def patch_of(examined: Examined, ledger: Ledger, *, target: Path) -> tuple[Ledger, Patch]:
    """Write what was kept to `target` as a diff; the ledger with what became of each fix, and the patch."""
    measurement = load_measurement(examined.directory / MEASUREMENT_FILE)
    return write_patch(
        ledger,
        run=examined.run,
        census=measurement.census,
        directory=examined.directory,
        target=target,
    )
