"""What `hotloop doctor` hands over at its end: the patch, text for a pull request, and the patch applied."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from hotloop.cli.output import show
from hotloop.core.errors import UsageError
from hotloop.core.files import write_atomically
from hotloop.core.ledger import Ledger
from hotloop.doctor.patch.write import UNPATCHED, Patch, apply_kept, write_patch
from hotloop.doctor.program import Examined, shown
from hotloop.report.kept_patch import BEGINS, render_pull_request
from hotloop.report.ledger import render_patch
from hotloop.runs.stored_run import StoredRun

PATCH_FILE = "fix.patch"
"""In the run directory, where no other file is named."""
MAY_BEGIN = {"--diff": (b"--- ", b"diff "), "--pr": (BEGINS.encode(),)}
"""What a file that is there begins with, if an option may write it again."""


def refuse_target(option: str, name: str) -> None:
    """Raises `UsageError` for a file that this option cannot or should not write, before anything runs."""
    path, other = Path(name), f"choose another file for {option}"
    if name == "-":
        raise UsageError(
            f"`{option} -` would mix with what the command itself prints", do="name a file for it"
        )
    if path.is_dir():
        raise UsageError(f"{option} names a file, and this is a directory", where=name)
    if path.exists() and not path.is_file():
        raise UsageError(f"{option} names a file, and this is none", where=name)
    if not path.parent.is_dir():
        raise UsageError("no such directory", where=str(path.parent), do=f"make it, or {other}")
    try:
        with path.open("rb") as file:
            begins = file.read(64)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read: {error.strerror}", where=name) from error
    if begins and not begins.startswith(MAY_BEGIN[option]):
        raise UsageError(
            f"this file holds something that {option} did not write", where=name, do=other
        )


def hand_over(
    examined: Examined,
    ledger: Ledger,
    found: StoredRun,
    *,
    diff: str | None,
    pull_request: str | None,
    apply: bool,
) -> Ledger:
    """Write the patch of what was kept, say what to do with it, and do it where that is asked for and confirmed."""
    if not ledger.kept and not (diff or pull_request or apply):
        return ledger
    directory = shown(examined.directory)
    target = Path(diff) if diff is not None else directory / PATCH_FILE
    ledger, patch = write_patch(ledger, examined.directory, target=target)
    show(f"\n{render_patch(ledger)}", err=True)
    if not patch.diff:
        return ledger
    if pull_request is not None and ledger.together is not None:
        environment = found.measurement.environment if found.measurement is not None else None
        text = render_pull_request(ledger, examined.diagnosis, environment, patch.diff)
        write_atomically(Path(pull_request), text.encode())
        click.echo(f"Text for a pull request: {pull_request}", err=True)
    if apply:
        # Made once more: who is asked may edit meanwhile.
        apply_again = partial(apply_kept, ledger, examined.directory)
        ask_and_apply(patch, apply_again, backup=directory / UNPATCHED, diff=target)
    return ledger


def ask_and_apply(patch: Patch, apply: Callable[[], object], *, backup: Path, diff: Path) -> None:
    """Call `apply` once a person on the terminal says so; what was there goes to `backup`."""
    names = ", ".join(patch.files)
    if not sys.stdin.isatty():
        click.echo("Not applied: there is no terminal to ask on.", err=True)
        return
    if not click.confirm(f"Apply it to {names} now?", err=True):
        click.echo("Not applied.", err=True)
        return
    apply()
    undo = f"git apply -R {shlex.quote(str(diff))}"
    click.echo(f"Applied to {names}. As before: {backup}. Undo: `{undo}`", err=True)
