"""The one directory of a doctor's run: made, continued where it was, or set aside."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop import __version__
from hotloop.core.child import IMPORTS_FILE
from hotloop.core.command_run import COMMAND_RUN_FILE, CommandRun
from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.files import read_json, storage_error, write_json
from hotloop.core.ledger import LEDGER_FILE
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.hardware.environment import read_host, runs_on
from hotloop.trial.measure import MEASUREMENT_FILE
from hotloop.trial.plan import TrialPlan

if TYPE_CHECKING:
    from hotloop.doctor.fixes import Fix

MAX_NUMBER = 10_000

MACHINE = ("cpu_model", "cpu_quota", "memory_limit_bytes", "platform")
"""Of an environment: what a machine is to a run that goes on, beside `runs_on`."""
TRIALS = "trials"
"""Below a run directory: where fixes are tried."""
OPTIONS_FILE = "options.json"
"""In `trials/`: what decides how they are made, and what it came from."""


def mapping_of(path: Path, problems: list[HotloopError] | None = None) -> dict[str, Any]:
    """A JSON object; empty where there is none, or it is damaged, which is one of the `problems`."""
    try:
        return parse_object(read_bytes(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        if problems is not None:
            problems.append(UsageError(f"not valid JSON: {error}", where=str(path)))
        return {}


def make_run_directory(wanted: Path | None, name: str) -> Path:
    """A new directory: the one asked for, or `runs/doctor-NAME`, numbered where that exists.

    Absolute, because a script may change its directory. Raises `UsageError` where something is in the
    way, `EnvironmentFailed` when the disk refuses.
    """
    path = wanted if wanted is not None else Path("runs") / f"doctor-{name}"
    if os.pathsep in str(path.absolute()):
        raise UsageError(
            f"the name holds `{os.pathsep}`, which separates directories in PYTHONPATH",
            where=str(path.absolute()),
            do="name another directory with --out",
        )
    try:
        if wanted is not None:
            return _make_wanted(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, MAX_NUMBER):
            numbered = path if number == 1 else path.with_name(f"{path.name}-{number}")
            try:
                numbered.mkdir()
            except FileExistsError:
                continue
            return numbered.resolve()
    except (NotADirectoryError, FileExistsError) as error:
        raise UsageError(
            "cannot make the run directory: a part of its path is a file",
            where=str(path),
            do="name another one with --out",
        ) from error
    except OSError as error:
        raise storage_error(error, path, "make the run directory") from error
    raise UsageError("too many run directories", where=str(path), do="remove some, or name one with --out")  # fmt: skip


def _make_wanted(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise UsageError("not a directory", where=str(path), do="name another one with --out")
    if path.is_dir() and any(path.iterdir()):
        shown = f"; `hotloop report {path}` shows it" if (path / COMMAND_RUN_FILE).exists() else ""
        raise UsageError(
            "this directory holds something already, and nothing is overwritten",
            where=str(path),
            do=f"name another one with --out, or remove it{shown}",
        )
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def begun_run(
    directory: Path, command: Sequence[str], *, steps: int | None, to_end: bool = False
) -> CommandRun | None:
    """The run in `directory` that was examined to its end, its fixes tried or not; `None` where there is none.

    Raises `UsageError` where it is another command's, or was made otherwise.
    """
    path = directory / COMMAND_RUN_FILE
    # Written last of an examination: trying may have been refused before its first trial.
    examined = (directory / TRIALS).is_dir() or (directory / MEASUREMENT_FILE).exists()
    if not path.exists() or not examined:
        return None
    run = read_json(path, CommandRun)
    if run.ended not in ("by_itself", "enough_steps") or run.of_a_block:
        return None
    # Whether it went to its own end; as was asked where it would have done so either way.
    whole = to_end if run.ended == "by_itself" else run.seconds is None and run.steps is None
    asked = {
        "command": (run.command, tuple(command)),
        "working directory": (run.workdir, str(Path.cwd())),
        "--steps": (run.steps, steps),
        "--to-end": (whole, to_end),
        "version of hotloop": (run.hotloop, __version__),
    }
    host = read_host()
    if run.variables is not None:  # pairs of one environment say nothing of another
        now = host.variables
        asked |= {
            f"value of {name}": (run.variables.get(name), now.get(name))
            for name in sorted({*now, *run.variables})
        }
    seen = mapping_of(directory / "environment.json")
    was_on = {**(run.runs_on or {}), **{name: seen[name] for name in MACHINE if name in seen}}
    was_on |= {"torch": seen["torch"]} if seen.get("torch") else {}
    is_on = {**runs_on(run.command[0]), **{name: getattr(host, name) for name in MACHINE}}
    asked |= {
        f"{name.replace('_', ' ')} ({was_on[name] or 'none'} then, {at_hand or 'none'} now)": (
            was_on[name],
            at_hand,
        )
        for name, at_hand in {**is_on, **_torch_now(directory)}.items()
        if name in was_on
    }
    others = [what for what, (stored, given) in asked.items() if stored != given]
    if others:
        raise UsageError(
            f"this directory holds a run of another {' and '.join(others)}",
            where=str(directory),
            do="repeat that command as it was to continue it, or name another directory with --out",
        )
    return run


def _torch_now(directory: Path) -> dict[str, str]:
    """The version of torch that lies where the command of `directory` imported it from: empty if it has gone, no key where
    nobody saw."""
    modules = mapping_of(directory / IMPORTS_FILE).get("modules")
    file = modules.get("torch") if isinstance(modules, dict) else None
    if not isinstance(file, str):
        return {}
    try:
        text = Path(file).with_name("version.py").read_text(errors="replace")
    except OSError:
        return {"torch": ""}
    found = re.search(r"^__version__ = '(.+)'", text, re.MULTILINE)
    return {"torch": found[1]} if found else {}


def was_interrupted(directory: Path, command: Sequence[str]) -> bool:
    """Whether `directory` holds an examination of this very command that did not come to its end."""
    path = directory / COMMAND_RUN_FILE
    if not path.exists() or (directory / TRIALS).exists():
        return False
    run = read_json(path, CommandRun)
    same = (run.command, run.workdir) == (tuple(command), str(Path.cwd()))
    return run.ended == "interrupted" and same


def set_interrupted_aside(directory: Path, command: Sequence[str]) -> Path | None:
    """Rename `directory` if it held an interrupted examination of this very command; its new path, else `None`.

    Renamed, not removed: what was seen until then, and what else its user has put there, stays.
    """
    if not was_interrupted(directory, command):
        return None
    directory = directory.resolve()
    names = (f"{directory.name}-interrupted-{number}" for number in itertools.count(1))
    aside = next(each for name in names if not (each := directory.with_name(name)).exists())
    try:
        return directory.rename(aside)
    except OSError as error:
        raise storage_error(error, directory, "set the interrupted run aside") from error


def refuse_fewer_fixes(directory: Path, fixes: Sequence[Fix]) -> None:
    """Raises `UsageError` where the ledger in `directory` tells of others, which a new one would lose."""
    stored = mapping_of(directory / LEDGER_FILE).get("fixes") or ()
    told = [each["name"] for each in stored if each["status"] not in ("not_tried", "stopped")]
    lost = [name for name in told if name not in {fix.name for fix in fixes}]
    if lost:
        why = f"it holds what came of {' and '.join(f'`{name}`' for name in lost)}"
        raise _other("--only", why, directory)


def begun_options(directory: Path, *, in_place: bool) -> dict[str, int]:
    """`loss_steps`, `steps` and `at_once` with which trials were begun in `directory`: others are no pairs with those.

    Raises `UsageError` where comparisons were begun in another way of `--in-place`.
    """
    trials = directory / TRIALS
    stored = mapping_of(trials / OPTIONS_FILE)
    is_begun = any(trials.glob("*/plan.json"))
    if is_begun and stored.get("in_place", in_place) != in_place:
        first = "with" if stored["in_place"] else "without"
        raise _other("--in-place", f"its trials were begun {first} it", directory)
    has_losses = any(trials.glob(f"*/losses-*/{MEASUREMENT_FILE}"))
    names = ["loss_steps"] * (has_losses or is_begun) + ["steps", "at_once"] * is_begun
    return {name: stored[name] for name in names if isinstance(stored.get(name), int)}


def store_options(
    directory: Path, plan: TrialPlan, loss_steps: int, *, at_once: bool = False
) -> None:
    """For the next call."""
    options = {
        **{"in_place": plan.in_place, "steps": plan.steps},
        **{"loss_steps": loss_steps, "at_once": at_once},
    }
    write_json(directory / TRIALS / OPTIONS_FILE, options)


def refuse_other_values(directory: Path, fixes: Sequence[Fix]) -> None:
    """Raises `UsageError` where the comparison of a fix was begun in `directory` with another value."""
    for fix in fixes:
        value = begun_value(directory, fix.name, fix.value)
        if value != fix.value:
            why = f"`{fix.name}` was begun with {json.dumps(value)}, not {json.dumps(fix.value)}"
            raise _other("--only", why, directory)


def begun_value(directory: Path, name: str, value: Any) -> Any:
    """With which the comparison of that fix was begun in `directory`; `value` where it was not."""
    candidate = mapping_of(directory / TRIALS / name / "plan.json").get("candidate")
    values = candidate.get("fixes") if isinstance(candidate, dict) else None
    return values.get(name, value) if isinstance(values, dict) else value


def _other(option: str, why: str, directory: Path) -> UsageError:
    return UsageError(
        f"this directory cannot be continued with another {option}: {why}",
        where=str(directory),
        do=f"repeat the command with {option} as it was, or name another directory with --out",
    )
