"""`hotloop env`: the machine as hotloop sees it."""

from __future__ import annotations

import click

from hotloop.cli.output import write_object


@click.command()
@click.option("--json", "json_file", metavar="FILE", help="Write it as JSON; `-` for stdout.")
def env(json_file: str | None) -> None:
    """Show the device, what this process may use of it, and the versions that matter.

    These are the keys by which two measurements are held against each other.
    """
    from hotloop.core.files import to_plain
    from hotloop.hardware.environment import read_environment
    from hotloop.report.html import environment_rows
    from hotloop.report.terminal import render_rows

    environment = read_environment()
    if json_file is not None:
        write_object(to_plain(environment), json_file)
    if json_file != "-":
        click.echo(render_rows("environment", environment_rows(environment)))
