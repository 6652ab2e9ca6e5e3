"""`hotloop doctor -- COMMAND ...`: its options. What it does is in `doctor_session.py`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from hotloop.cli.output import json_option
from hotloop.core.connections import Network, connection_name, host_and_port
from hotloop.core.errors import UsageError

TRYING_S = 300.0
"""For trying fixes, where no budget is given."""
ALL = "all"
"""What `--network` without a value stands for."""


class Budget(click.ParamType[float]):
    """As `budget_of` reads it."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from hotloop.doctor.trial_costs import budget_of

        try:
            return value if isinstance(value, float) else budget_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Hosts(click.ParamType[Network]):
    """Hosts with their ports; without a value all machines."""

    name = "hosts"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Network:
        if value == ALL:
            return Network(unlimited=True)
        try:
            named = [connection_name(*host_and_port(each)) for each in str(value).split(",")]
        except ValueError as error:
            self.fail(
                f"{error}; write --network=HOST:PORT,... or, for all machines, --network -- COMMAND",
                param,
                ctx,
            )
        return Network(tuple(dict.fromkeys(named)))


network_option = click.option(
    "--network",
    type=Hosts(),
    is_flag=False,
    flag_value=ALL,
    metavar="[HOST:PORT]",
    help="Let trials reach these machines (HOST:PORT,...) alone; without a value all. Trackers stay offline.",
)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--no-try", is_flag=True, help="Only say what holds it back.")
@click.option(
    "--budget",
    type=Budget(),
    metavar="TIME",
    help="For all of it, e.g. 10m, or none [default: 5m for trying fixes, up to 7m where a gain is about to be proven].",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Try this fix, asked for by a finding or not; may be given again.",
)
@click.option(
    "--in-place",
    is_flag=True,
    help="Try fixes in the working directory itself, where what they write stays.",
)
@network_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Run directory, new or empty, or that of the same command before: it goes on there "
    "[default: a new runs/doctor-NAME].",
)
@click.option(
    "--steps",
    type=click.IntRange(min=5),
    metavar="N",
    help="End the command after N counted steps, without its own ending.",
)
@click.option("--to-end", is_flag=True, help="Run the command to its own end.")
@click.option(
    "--diff",
    metavar="FILE",
    help="Write the patch with the fixes that were kept to this file [default: fix.patch in the run directory].",
)
@click.option("--apply", is_flag=True, help="Ask whether to apply that patch, and do it.")
@click.option("--pr", metavar="FILE", help="Write the description of a pull request with it.")
@json_option("Write the diagnosis, and what came of the fixes, to this file.")
@click.option(
    "--level",
    type=click.FloatRange(min=1, min_open=True),
    help="Exit with 1 if a finding could gain this much, e.g. 1.05.",
)
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    metavar="PID",
    help="Start nothing: say where a training that runs already spends its time. Needs `pip install 'hotloop[pid]'`.",
)
@click.option(
    "--seconds",
    type=click.IntRange(1, 3600),
    metavar="N",
    help="For how long --pid watches it [default: 20].",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def doctor(
    command: tuple[str, ...],
    level: float | None,
    pid: int | None,
    seconds: int | None,
    **given: Any,
) -> None:
    """Run a training command as it is, say what holds it back, and try what may help.

    COMMAND is anything that trains with PyTorch: `python train.py`, `python -m pkg`, `torchrun ...`,
    `accelerate launch ...`. It runs here and once, with its own output and files; only the run directory is
    added. It is ended once a minute of its steps was counted, unless it ends before, or --to-end or --steps says
    otherwise. Ctrl-C ends it, too, and what was seen until then is judged.

    Then each fix that has a live form and answers a finding is tried: the unchanged command and that with the fix in
    turns, in fresh processes, until the difference is known or the budget is spent. Each starts from the files as
    they were before the command ran, and what it writes is thrown away.
    """
    options = Options(**given)
    if pid is not None:
        from hotloop.cli.live_process_view import show_live_process

        _refuse_beside("--pid", {**given, "level": level, "COMMAND": command})
        show_live_process(pid, seconds or 20, options.json_file)
    if seconds is not None:
        raise UsageError("--seconds has no effect without --pid", do="leave it out")
    _refuse(options)
    from hotloop.cli.doctor_session import run_session

    raise click.exceptions.Exit(run_session(command, options, level=level))


@dataclass(frozen=True)
class Options:
    """The options of one call, as they were given."""

    no_try: bool = False
    budget: float | None = None
    only: tuple[str, ...] = ()
    in_place: bool = False
    network: Network | None = None
    out: Path | None = None
    steps: int | None = None
    to_end: bool = False
    diff: str | None = None
    apply: bool = False
    pr: str | None = None
    json_file: str | None = None
    began_at: float = field(default_factory=time.monotonic)

    def examined_s(self) -> float | None:
        """Seconds of steps to examine; `None`: the whole run."""
        from hotloop.doctor.program import ENOUGH_S

        if self.to_end:
            return None
        return ENOUGH_S if self.budget is None else min(ENOUGH_S, self.budget / 4)

    def trials_s(self) -> float | None:
        """Seconds for trying fixes; `None`: as long as it takes."""
        if self.budget is None:
            return TRYING_S
        left = self.budget - (time.monotonic() - self.began_at)
        return None if math.isinf(left) else max(left, 1.0)

    @property
    def asks_for_fixes(self) -> bool:
        hosts = self.network is not None and self.network.hosts
        return bool(self.only or self.asks_for_patch or self.budget is not None or hosts)

    @property
    def asks_for_patch(self) -> bool:
        return self.diff is not None or self.pr is not None or self.apply

    def of_trials(self) -> list[str]:
        """As words of the command that goes on with what this one left."""
        files = (("--diff", self.diff), ("--pr", self.pr), ("--json", self.json_file))
        words = [part for name, value in files if value for part in (name, value)]
        words += ["--apply"] if self.apply else []
        words += ["--in-place"] if self.in_place else []
        if self.network is not None:
            hosts = ",".join(self.network.hosts)
            words.append(f"--network={hosts}" if hosts else "--network")
        return words


def _refuse(options: Options) -> None:
    """Raises `UsageError` for what could be refused only after the command has run, or has no effect."""
    of_trials = ("budget", "only", "in_place", "network", "diff", "pr", "apply")
    if options.to_end:
        _refuse_beside("--to-end", {"steps": options.steps})
    if options.in_place:
        _refuse_beside("--in-place", {"network": options.network})
    if options.no_try:
        _refuse_beside("--no-try", {name: getattr(options, name) for name in of_trials})
    if options.only:
        from hotloop.doctor.fixes import asked_for

        asked_for(options.only)
    if options.json_file == "-":
        do = "name a file, or read diagnosis.json in the run directory"
        raise UsageError("`--json -` would mix with what the command itself prints", do=do)
    if options.asks_for_patch:
        from hotloop.cli.patch_in_hand import refuse_target

        for option, name in (("--diff", options.diff), ("--pr", options.pr)):
            if name is not None:
                refuse_target(option, name)
    if options.network is not None:
        from hotloop.doctor.starting_point import refuse_unknown_hosts

        refuse_unknown_hosts(options.network)


def _refuse_beside(option: str, given: dict[str, Any]) -> None:
    beside = {name: value for name, value in given.items() if name != "json_file"}
    names = [name for name, value in beside.items() if value not in (None, False, ())]
    if names:
        name = names[0] if names[0].isupper() else "--" + names[0].replace("_", "-")
        raise UsageError(f"{name} has no effect with {option}", do="leave one of them out")
