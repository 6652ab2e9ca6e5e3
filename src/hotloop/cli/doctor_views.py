"""What `hotloop doctor` shows without running a command: `--pid PID` and `--scorecard [RUNS...]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from hotloop.cli.output import show, tell_json
from hotloop.core.errors import ExitCode, UsageError
from hotloop.core.files import read_json, to_plain
from hotloop.core.ledger import LEDGER_FILE, Ledger
from hotloop.doctor.live_process import find_process, sample_stacks
from hotloop.doctor.stack_phases import profile_stacks
from hotloop.judge.scorecard import scorecard
from hotloop.report.ledger import render_scorecard
from hotloop.report.terminal import render_stack_profile


def show_live_process(pid: int, seconds: int, json_file: str | None) -> None:
    """Print where the process spends its time. Exits with 3 where no training was seen."""
    process = find_process(pid)
    click.echo(f"hotloop: watching PID {process.pid} for {seconds} s", err=True)
    profile = profile_stacks(sample_stacks(process.pid, seconds), process)
    if tell_json(to_plain(profile), json_file):
        show(render_stack_profile(profile))
    raise click.exceptions.Exit(ExitCode.FINE if profile.trains else ExitCode.INCONCLUSIVE)


def show_scorecard(places: Sequence[str], json_file: str | None) -> None:
    """Print the scorecard of every ledger below `places`. Raises `UsageError` where there is none, or one is damaged."""
    found: dict[Path, tuple[str, Ledger]] = {}
    for place in map(Path, places or ("runs",)):
        if not place.is_dir():
            do = "name run directories of `hotloop doctor`, or a directory that holds some"
            raise UsageError("no such directory", where=str(place), do=do)
        for path in sorted(place.rglob(LEDGER_FILE)):
            if path.resolve() not in found:  # places may overlap
                found[path.resolve()] = str(path.parent), read_json(path, Ledger)
    if not found:
        do = "run `hotloop doctor -- COMMAND` first"
        raise UsageError("no fixes were tried there", where=", ".join(places or ("runs",)), do=do)
    card = scorecard(list(found.values()))
    if tell_json(to_plain(card), json_file):
        show(render_scorecard(card))
