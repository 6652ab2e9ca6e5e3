"""One call of `hotloop doctor`: a command is run and examined, fixes are tried, and what came of it is handed over.

What tries fixes is imported when some are tried: loading it takes longer than loading all the rest.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotloop.cli.output import show, write_object
from hotloop.cli.progress import title_progress
from hotloop.core.command_run import describe_end
from hotloop.core.connections import NO_NETWORK
from hotloop.core.errors import ExitCode, HotloopError, Interrupted, UsageError
from hotloop.core.files import to_plain
from hotloop.core.ledger import Ledger
from hotloop.doctor.program import Examined, continued, examine, exit_code, shown
from hotloop.doctor.starting_point import keep_start
from hotloop.report.html import write_html
from hotloop.report.ledger import render_ledger
from hotloop.runs.run_page import answer_of, page_of, text_of
from hotloop.runs.stored_run import StoredRun, read_run

if TYPE_CHECKING:
    from hotloop.cli.doctor import Options

GRACE_S = 120.0
"""By which the usual time for trying may be exceeded, where every pair so far shows a large gain."""


def run_session(command: tuple[str, ...], options: Options, *, level: float | None) -> int:
    """The exit code. level: the gain of a finding from which on it is 1."""
    begun, why_not = None, None
    if not options.no_try:
        begun = continued(options.out, command, steps=options.steps, to_end=options.to_end)
    if begun is not None:
        _say(f"continuing in {shown(begun.directory)}: the command has run, fixes are tried on")
        examined = begun
    else:
        examined, why_not = examined_command(command, options)
    found = diagnosed(examined, continued=begun is not None)
    why_not = why_not or reason_not_tried(examined)
    if examined.run.ended == "interrupted":
        _say("interrupted: the same command starts it again from its beginning")
    if options.no_try:
        pass
    elif why_not is not None:
        _say(f"no fix was tried: {why_not}")
    else:
        found = _treated(examined, found, options, continued=begun is not None)
    if options.json_file is not None:
        write_object(object_of(examined, found), options.json_file)
    if found.ledger is not None and found.ledger.asked and not found.ledger.fixes:
        return ExitCode.USAGE
    return exit_code(examined, level=level)


def examined_command(
    command: tuple[str, ...],
    options: Options,
    *,
    whole: str = "--to-end runs it whole",
    at_least: int | None = None,
) -> tuple[Examined, str | None]:
    """The command, run to its end; and why no fix can be tried on it, if its files could not be kept as they were."""
    why_not = None

    def keep(directory: Path) -> None:
        nonlocal why_not
        if options.no_try or options.in_place:
            return
        try:
            keep_start(directory, Path.cwd(), network=options.network or NO_NETWORK)
        except UsageError as error:
            if options.asks_for_fixes:
                raise
            _say(f"no fix will be tried: {error.what}\n  {error.do}")
            why_not = error.what

    with title_progress() as progress:
        examined = examine(
            command,
            out=options.out,
            steps=options.steps,
            seconds=options.examined_s(),
            at_least=at_least,
            whole=whole,
            before=keep,
            progress=progress,
            say=_say,
            warn=_say,
        )
    return examined, why_not


def reason_not_tried(examined: Examined) -> str | None:
    """Why a command that ended like this cannot be tried again."""
    run = examined.run
    if run.ended in ("by_itself", "enough_steps"):
        if not run.reads_input:
            return None
        return "it reads its standard input, of which a trial gets nothing; let it read a file by its name"
    if run.ended == "interrupted" or run.returncode is None:
        return "the command was interrupted"
    return f"the command {describe_end(run.returncode)}"


def diagnosed(examined: Examined, *, continued: bool) -> StoredRun:
    """What was found, told on the terminal and written as a page; raises what refuses a verdict on it."""
    found = read_run(shown(examined.directory), known=examined.run)
    if continued:  # what came of its fixes is told at the end
        found = replace(found, ledger=None)
    # First, whatever the disk says. On stderr: stdout is the command's own, and may be a file or a pipe.
    show(f"\n{text_of(found)}", err=True)
    if examined.refused is not None:
        raise examined.refused
    write_html(examined.directory / "report.html", page_of(found))
    return found


def _treated(
    examined: Examined, found: StoredRun, options: Options, *, continued: bool
) -> StoredRun:
    """With what came of trying fixes, which takes long, and may be refused or killed."""
    from hotloop.cli.patch_in_hand import hand_over
    from hotloop.doctor.budget import BudgetTooSmall

    file = options.json_file
    # What is known by now is in the file before it.
    # Not where it goes on: the file may lie among those that trials are copies of.
    # Nor into a pipe or a device: those take one object, once.
    can_be_replaced = file is not None and (Path(file).is_file() or not Path(file).exists())
    is_stored = not continued and can_be_replaced
    if file is not None and is_stored:
        write_object(object_of(examined, found), file)
    ledger = None
    try:
        ledger = _tried(examined, options)
        ledger = hand_over(
            *(examined, ledger, found),
            diff=options.diff,
            pull_request=options.pr,
            apply=options.apply,
        )
    except Interrupted:
        raise
    except HotloopError as error:
        was_asked = options.budget is not None or not isinstance(error, BudgetTooSmall)
        if was_asked and file is not None and (ledger is not None or not is_stored):
            _store(object_of(examined, replace(found, ledger=ledger)), file)
        if was_asked:
            raise
        _say(f"no fix was tried: {error.what}\n  {error.do}")
    found = replace(found, ledger=ledger)
    write_html(examined.directory / "report.html", page_of(found))
    return found


def _tried(examined: Examined, options: Options) -> Ledger:
    """What came of trying fixes, said on the terminal."""
    from hotloop.cli.trial_view import trial_view
    from hotloop.doctor.fix_campaign import try_fixes

    budget_s = options.trials_s()
    with trial_view(budget_s) as view:
        ledger = try_fixes(
            examined,
            budget_s=budget_s,
            grace_s=GRACE_S if options.budget is None else 0.0,
            only=options.only,
            in_place=options.in_place,
            network=options.network or NO_NETWORK,
            options=options.of_trials(),
            show=view.show,
            warn=lambda text: view.say(f"hotloop: {text}"),
        )
    show(f"\n{render_ledger(ledger)}", err=True)
    return ledger


def object_of(examined: Examined, found: StoredRun) -> dict[str, Any]:
    """The diagnosis as it is stored, with the command, how it ended and what was tried beside it."""
    diagnosis = examined.diagnosis
    if found.ledger is not None:
        from hotloop.doctor.fix_campaign import with_outcomes

        diagnosis = with_outcomes(diagnosis, found.ledger)
    return {
        **to_plain(diagnosis),
        "answer": answer_of(found),
        "run": str(examined.directory),
        "doctor": to_plain(examined.run),
        "ranks": to_plain(found.ranks),
        "notes": list(found.notes),
        "memory": to_plain(found.memory),
        "out_of_memory": to_plain(found.out_of_memory),
        "ledger": to_plain(found.ledger),
    }


def _store(value: dict[str, Any], file: str) -> None:
    """What says this already stays untouched: trials that go on need the files as they were."""
    try:
        if Path(file).is_file() and json.loads(Path(file).read_text(encoding="utf-8")) == value:
            return
    except (OSError, ValueError):  # something else, to be replaced
        pass
    write_object(value, file)


def _say(message: str) -> None:
    click.echo(f"hotloop: {message}", err=True)
