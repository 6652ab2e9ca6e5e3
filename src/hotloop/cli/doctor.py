"""`hotloop doctor --no-try -- COMMAND ...`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotloop.core.errors import UsageError

if TYPE_CHECKING:
    from hotloop.cli.run_directory import Found
    from hotloop.doctor.program import Examined


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--no-try", is_flag=True, help="Only say what holds it back; required for now.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Run directory, new or empty: one that holds something is refused [default: a new "
    "runs/doctor-NAME].",
)
@click.option(
    "--steps",
    type=click.IntRange(min=5),
    metavar="N",
    help="End the command after N counted steps, without its own ending.",
)
@click.option("--json", "json_file", metavar="FILE", help="Write the diagnosis here.")
@click.option(
    "--level",
    type=click.FloatRange(min=1, min_open=True),
    help="Exit with 1 if a finding could gain this much, e.g. 1.05.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def doctor(
    no_try: bool,
    out: Path | None,
    steps: int | None,
    json_file: str | None,
    level: float | None,
    command: tuple[str, ...],
) -> None:
    """Run a training command as it is, and say what holds it back.

    COMMAND is anything that trains with PyTorch: `python train.py`, `python -m pkg`, `torchrun ...`,
    `accelerate launch ...`. It runs here and once, with its own output, files and ending; only the run
    directory is added. Ctrl-C ends it, and what was seen until then is judged.
    """
    _refuse(no_try, json_file, command)
    from hotloop.cli.output import write_object
    from hotloop.cli.report import page_of, text_of
    from hotloop.cli.run_directory import read_run
    from hotloop.cli.terminal_title import title_progress
    from hotloop.doctor.program import examine, exit_code, shown
    from hotloop.report.html import write_html

    with title_progress() as progress:
        examined = examine(command, out=out, steps=steps, progress=progress, say=_say, warn=_say)
    found = read_run(shown(examined.directory), known=examined.run)
    # First, whatever the disk says. On stderr: stdout is the command's own, and may be a file or a pipe.
    click.echo(f"\n{text_of(found)}", err=True)
    if examined.refused is not None:
        raise examined.refused
    write_html(examined.directory / "report.html", page_of(found))
    if json_file is not None:
        write_object(object_of(examined, found), json_file)
    raise click.exceptions.Exit(exit_code(examined, level=level))


def object_of(examined: Examined, found: Found) -> dict[str, Any]:
    """The diagnosis as it is stored, with the command and how it ended beside it."""
    from hotloop.cli.report import answer_of
    from hotloop.core.files import to_plain

    return {
        **to_plain(examined.diagnosis),
        "answer": answer_of(found),
        "run": str(examined.directory),
        "doctor": to_plain(examined.run),
        "ranks": None if found.ranks is None else to_plain(found.ranks),
        "notes": list(found.notes),
    }


def _refuse(no_try: bool, json_file: str | None, command: tuple[str, ...]) -> None:
    if not no_try:
        given = " ".join(command) or "python train.py"
        raise UsageError(
            "trying fixes is not in this version yet, so nothing was run",
            do=f"ask for the diagnosis alone: hotloop doctor --no-try -- {given}",
        )
    if json_file == "-":
        raise UsageError(
            "`--json -` would mix with what the command itself prints",
            do="name a file, or read diagnosis.json in the run directory",
        )
    if json_file is not None and not Path(json_file).parent.is_dir():
        raise UsageError(
            "no such directory",
            where=str(Path(json_file).parent),
            do="make it, or choose another file for --json",
        )


def _say(message: str) -> None:
    click.echo(f"hotloop: {message}", err=True)
