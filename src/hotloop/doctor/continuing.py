"""A doctor's run that was ended while it tried fixes, and goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotloop import __version__
from hotloop.core.command_run import COMMAND_RUN_FILE, CommandRun
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json
from hotloop.core.ledger import LEDGER_FILE
from hotloop.doctor.workbench import TRIALS


def unfinished_run(
    directory: Path, command: Sequence[str], *, steps: int | None
) -> CommandRun | None:
    """The run whose fixes `directory` was trying; `None` where there is none.

    Raises `UsageError` where it is another command's, or was made otherwise.
    """
    path = directory / COMMAND_RUN_FILE
    if not path.exists() or not (directory / TRIALS).is_dir() or (directory / LEDGER_FILE).exists():
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
            f"this directory holds an unfinished run of another {' and '.join(others)}",
            where=str(directory),
            do="repeat that command as it was to continue it, or name another directory with --out",
        )
    return run
