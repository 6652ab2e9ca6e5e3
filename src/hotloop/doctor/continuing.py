"""A doctor's run that was ended before, while or after it tried fixes, and goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop import __version__
from hotloop.core.command_run import COMMAND_RUN_FILE, CommandRun
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json, write_json
from hotloop.core.ledger import LEDGER_FILE
from hotloop.doctor.directory import TRIALS
from hotloop.trial.measure import MEASUREMENT_FILE
from hotloop.trial.plan import TrialPlan

if TYPE_CHECKING:
    from hotloop.doctor.fixes import Fix

OPTIONS_FILE = "options.json"
"""In `trials/`: what decides how they are made, and what it came from."""


def begun_run(directory: Path, command: Sequence[str], *, steps: int | None) -> CommandRun | None:
    """The run in `directory` that was examined to its end, its fixes tried or not; `None` where there is none.

    Raises `UsageError` where it is another command's, or was made otherwise.
    """
    path = directory / COMMAND_RUN_FILE
    # Written last of an examination: trying may have been refused before its first trial.
    examined = (directory / TRIALS).is_dir() or (directory / MEASUREMENT_FILE).exists()
    if not path.exists() or not examined:
        return None
    run = read_json(path, CommandRun)
    if run.ended not in ("by_itself", "enough_steps"):
        return None
    asked = {
        "command": (run.command, tuple(command)),
        "working directory": (run.workdir, str(Path.cwd())),
        "--steps": (run.steps, steps),
        "version of hotloop": (run.hotloop, __version__),
    }
    others = [what for what, (stored, given) in asked.items() if stored != given]
    if others:
        raise UsageError(
            f"this directory holds a run of another {' and '.join(others)}",
            where=str(directory),
            do="repeat that command as it was to continue it, or name another directory with --out",
        )
    return run


def refuse_fewer_fixes(directory: Path, fixes: Sequence[Fix]) -> None:
    """Raises `UsageError` where the ledger in `directory` tells of others, which a new one would lose."""
    stored = _mapping(directory / LEDGER_FILE).get("fixes") or ()
    told = [each["name"] for each in stored if each["status"] != "not_tried"]
    lost = [name for name in told if name not in {fix.name for fix in fixes}]
    if lost:
        why = f"it holds what came of {' and '.join(f'`{name}`' for name in lost)}"
        raise _other("--only", why, directory)


def refuse_other_options(
    directory: Path, plan: TrialPlan, *, budget_s: float | None, fixes: Sequence[Fix]
) -> None:
    """Raises `UsageError` where comparisons were begun in `directory` under options that do not go with these.

    Else these are stored, for the next call. Trials of other steps or values are no pairs of one comparison.
    """
    path = directory / TRIALS / OPTIONS_FILE
    begun = any((directory / TRIALS).glob("*/plan.json"))
    stored = _mapping(path) if begun else {}
    if stored.get("in_place", plan.in_place) != plan.in_place:
        first = "with" if stored["in_place"] else "without"
        raise _other("--in-place", f"its trials were begun {first} it", directory)
    if (steps := stored.get("steps", plan.steps)) != plan.steps:  # only a budget makes them others
        first, now = _budget(stored.get("budget_s")), _budget(budget_s)
        why = (
            f"its trials were begun {first}, to count {steps} steps; {now} they count {plan.steps}"
        )
        raise _other("--budget", why, directory)
    for fix in fixes:
        value = _begun_with(directory / TRIALS / fix.name / "plan.json", fix)
        if value != fix.value:
            why = f"`{fix.name}` was begun with {json.dumps(value)}, not {json.dumps(fix.value)}"
            raise _other("--only", why, directory)
    if not stored:
        write_json(path, {"in_place": plan.in_place, "steps": plan.steps, "budget_s": budget_s})


def _begun_with(plan_file: Path, fix: Fix) -> Any:
    candidate = _mapping(plan_file).get("candidate")
    values = candidate.get("fixes") if isinstance(candidate, dict) else None
    return values.get(fix.name, fix.value) if isinstance(values, dict) else fix.value


def _other(option: str, why: str, directory: Path) -> UsageError:
    return UsageError(
        f"this directory cannot be continued with another {option}: {why}",
        where=str(directory),
        do=f"repeat the command with {option} as it was, or name another directory with --out",
    )


def _budget(seconds: float | None) -> str:
    return "without --budget" if seconds is None else f"with --budget {seconds:g}s"


def _mapping(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged: what reads it for itself says so
        return {}
    return value if isinstance(value, dict) else {}
