"""`hotloop quickstart`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hotloop.cli.output import json_option, show, write_object

if TYPE_CHECKING:
    from hotloop.quickstart.program import Quickstart


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/quickstart"),
    show_default=True,
    help="Where everything is stored.",
)
@click.option(
    "--minutes",
    default=1.5,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Length of the final training.",
)
@json_option("Write what was found here.")
def quickstart(out: Path, minutes: float, json_file: str | None) -> None:
    """Show on this machine what hotloop's settings are worth, then train with them.

    Prepares the Python standard library's own sources, runs a plain training script and hotloop's
    settings in turn in fresh processes, compares speed and losses, trains for a few minutes and writes
    a sample. Works offline. The same command again continues, or shows what was measured.
    """
    from hotloop.cli.output import note
    from hotloop.cli.progress import progress_bar
    from hotloop.core.files import to_plain
    from hotloop.quickstart.program import measure_and_judge, train_with
    from hotloop.report.html import printable, write_html
    from hotloop.report.terminal import render_diagnosis, render_verdict
    from hotloop.runs.run_page import compile_cost, page_of
    from hotloop.runs.stored_run import read_run

    with progress_bar() as progress:
        compared = measure_and_judge(out, progress=progress, warn=note)
    show(f"\n{render_verdict(compared.verdict)}\n")
    click.echo("The hotloop process of median speed:")
    show(f"{render_diagnosis(compared.diagnosis)}\n")
    found = train_with(out, compared, minutes=minutes)
    write_html(out / "report.html", page_of(read_run(out)))
    if json_file is not None:
        write_object(to_plain(found), json_file)
    click.echo(f"\n{_trained(found)}. A sample of what it writes:\n")
    click.echo("\n".join(f"    {printable(line)}" for line in found.trained.sample.splitlines()))
    for name, value in compile_cost(to_plain(found)):
        click.echo(f"\n{name}: {value}")
    click.echo(f"\nEverything is in {out}; look at {out / 'report.html'}")


def _trained(found: Quickstart) -> str:
    from hotloop.report.numbers import loss, rate

    trained = found.trained
    which = "hotloop's settings" if trained.settings == "hotloop" else "the plain settings"
    return (
        f"Trained {trained.steps} steps with {which}: loss {loss(trained.loss)}, on held-out text "
        f"{loss(trained.held_out_loss)}, {rate(trained.tokens_per_s, 'tokens')}"
    )
