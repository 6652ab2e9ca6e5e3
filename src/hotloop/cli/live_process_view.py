"""What `hotloop doctor --pid PID` shows, without running a command."""

from __future__ import annotations

import click

from hotloop.cli.output import show, tell_json
from hotloop.core.errors import ExitCode
from hotloop.core.files import to_plain
from hotloop.doctor.live_process import find_process, sample_stacks
from hotloop.doctor.stack_phases import profile_stacks
from hotloop.report.terminal import render_stack_profile


def show_live_process(pid: int, seconds: int, json_file: str | None) -> None:
    """Print where the process spends its time. Exits with 3 where no training was seen."""
    process = find_process(pid)
    click.echo(f"hotloop: watching PID {process.pid} for {seconds} s", err=True)
    profile = profile_stacks(sample_stacks(process.pid, seconds), process)
    if tell_json(to_plain(profile), json_file):
        show(render_stack_profile(profile))
    raise click.exceptions.Exit(ExitCode.FINE if profile.trains else ExitCode.INCONCLUSIVE)
