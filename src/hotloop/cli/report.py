"""`hotloop report RUN`: read what a run left, let the judge say what it means, show it."""

from __future__ import annotations

from pathlib import Path

import click

from hotloop.cli.output import json_option, refuse_unwritable, show, write_object
from hotloop.core.errors import UsageError


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("after", required=False, type=click.Path(path_type=Path))
@json_option("Write all that was found; `-`: stdout.")
@click.option("--html", "html_file", type=click.Path(path_type=Path), help="Write a page.")
def report(run: Path, after: Path | None, json_file: str | None, html_file: Path | None) -> None:
    """Say what the run or comparison in the directory RUN showed.

    Reads whatever is there, also of a run that still trains, was interrupted, or is damaged: then
    everything else is shown, and the exit code is 2.

    With AFTER, quality, speed, time, use of the machine and memory of two trainings stand beside each other.
    """
    from hotloop.report.html import write_html
    from hotloop.runs.run_page import object_of, page_of, text_of
    from hotloop.runs.stored_run import read_run
    from hotloop.runs.two_runs import two_runs, two_runs_in_words

    if html_file is not None and after is not None:
        raise UsageError("--html is of one run", do="leave it out, or leave AFTER out")
    if html_file is not None:
        refuse_unwritable(str(html_file), made=run, option="--html")
    found, other = read_run(run), None if after is None else read_run(after)
    both = None if other is None else two_runs(found, other)
    if html_file is not None:
        write_html(html_file, page_of(found))
    if json_file is not None:
        write_object(both or object_of(found), json_file)
    if json_file != "-":
        show(two_runs_in_words(both) if both else text_of(found))
        if html_file is not None:
            click.echo(f"\npage written to {html_file}")
    if problems := (*found.problems, *(other.problems if other is not None else ())):
        # The first thing that is damaged, said last: everything else was shown.
        first, *others = problems
        more = f" (and {len(others)} more, listed above)" if others else ""
        raise UsageError(f"{first.what}{more}", where=first.where, do=first.do)
