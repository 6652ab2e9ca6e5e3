"""What somebody wants examined: refused where it cannot be, named, and given its environment."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from hotloop.core.child import DOCTOR, DOCTOR_STOP
from hotloop.core.errors import UsageError
from hotloop.trial import bootstrap
from hotloop.trial.measure import only_hotloop

_PYTHON = re.compile(r"(python|pypy)[0-9.]*[a-z]?(\.exe)?")
_DEAF = {
    "I": "isolates Python from its environment",
    "E": "has Python ignore PYTHONPATH",
    "S": "keeps Python from loading what attaches to it",
}
"""Flags under which an interpreter cannot be reached through its environment."""
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})


def refuse_unexaminable(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises `UsageError` for a command that cannot be run here, or that we could not see into."""
    if not command or not command[0]:
        do = "write it after `--`: hotloop doctor --no-try -- python train.py --its arguments"
        raise UsageError("no command was given", do=do)
    if environment.get(DOCTOR):
        raise UsageError(
            f"this runs inside another `hotloop doctor`, in {environment[DOCTOR]}",
            do="examine the inner command alone",
        )
    program = _find(command[0], environment)
    if program is None:
        raise _not_runnable(command)
    for flag, where in [*_flags_of_first_line(program), *_flags_of_command(command)]:
        do = f"examine the command without `-{flag}`"
        raise UsageError(f"`-{flag}` {_DEAF[flag]}, so no step could be seen", where=where, do=do)
    script = _script_of_command(command)
    if script is not None and not Path(script).exists():
        do = "check the spelling, or run this in the script's directory"
        raise UsageError(f"no such script `{script}`", where=str(Path.cwd()), do=do)


def script_name(command: Sequence[str]) -> str:
    """What a run directory is named after: the script, the module, or the program."""
    scripts = [each for each in command if each.endswith((".py", ".ipynb"))]
    modules = [after for each, after in pairwise(command) if each in ("-m", "--module")]
    name = Path(scripts[0]).stem if scripts else modules[0] if modules else Path(command[0]).name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "command"


def attached_environment(
    environment: Mapping[str, str],
    directory: Path,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    at_least: int | None = None,
) -> dict[str, str]:
    """The command's environment: the user's, and what has its interpreters report to `directory`.

    steps, seconds: counted ones after which it is ended; at_least: so many steps all the same. Raises `EnvironmentFailed` when the disk refuses.
    """
    own = [str(Path(bootstrap.__file__).parent), str(only_hotloop(directory))]
    theirs = environment.get("PYTHONPATH")
    added = {
        "PYTHONPATH": os.pathsep.join([*own, theirs] if theirs else own),
        DOCTOR: str(directory),
    }
    if steps is not None:
        added[DOCTOR_STOP] = str(steps)
    elif seconds is not None:
        added[DOCTOR_STOP] = f"{seconds:g}s{at_least or ''}"
    return {**environment, **added}


def _find(program: str, environment: Mapping[str, str]) -> Path | None:
    if os.sep in program:
        path = Path(program)
        return path if path.is_file() and os.access(path, os.X_OK) else None
    found = shutil.which(program, path=environment.get("PATH"))
    return Path(found) if found is not None else None


def _not_runnable(command: Sequence[str]) -> UsageError:
    program = command[0]
    if program.endswith((".py", ".pyw")):
        given = " ".join(command[:3])
        return UsageError(
            f"`{program}` is a script, not a program",
            do=f"write what runs it: hotloop doctor --no-try -- python {given}",
        )
    return UsageError(
        f"cannot run `{program}`: no such program, or it may not be executed",
        where=" ".join(command),
        do="check the spelling, or activate the environment that has it",
    )


def _flags_of_first_line(program: Path) -> list[tuple[str, str]]:
    """The flags of `#!/usr/bin/python3 -I`, as launchers such as torchrun have it."""
    try:
        with program.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return []
    if not first.startswith(b"#!"):
        return []
    words = first[2:].decode("utf-8", "replace").split()
    return [(flag, f"{program}:1") for flag, _ in _flags_of_command(words)]


def _flags_of_command(command: Sequence[str]) -> list[tuple[str, str]]:
    """Deaf-making flags of the first Python that is named, also behind `env` or `nohup`."""
    for place, word in enumerate(command):
        if _PYTHON.fullmatch(Path(word).name):
            return [(flag, " ".join(command)) for flag in _flags(command[place + 1 :])[0]]
    return []


def _script_of_command(command: Sequence[str]) -> str | None:
    """The script of a Python that is started here; one behind `ssh` or `docker` has its files elsewhere."""
    for place, word in enumerate(command):
        if _PYTHON.fullmatch(Path(word).name):
            return _flags(command[place + 1 :])[1]
        if "=" not in word and word not in ("env", "nohup"):
            return None
    return None


def _flags(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """An interpreter's own arguments, which end with its script, `-m` or `-c`; and the script."""
    found: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            return found, argument
        if argument == "-":
            break
        if argument in _WITH_VALUE:
            next(rest, None)
        if argument.startswith("--"):
            continue
        for letter in argument[1:]:
            if letter in "WX":  # the rest is its value
                break
            if letter in "mc":
                return found, None
            if letter in _DEAF:
                found.append(letter)
    return found, None
