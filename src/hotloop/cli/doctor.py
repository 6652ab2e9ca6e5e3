"""`hotloop doctor -- COMMAND ...`"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotloop.cli.option_types import ALL, Budget, Hosts
from hotloop.cli.output import json_option, write_object
from hotloop.core.connections import NO_NETWORK, Network
from hotloop.core.errors import ExitCode, HotloopError, Interrupted, UsageError

if TYPE_CHECKING:
    from hotloop.core.ledger import Ledger
    from hotloop.doctor.program import Examined
    from hotloop.runs.stored_run import StoredRun


TRYING_S = 300.0
"""For trying fixes, where no budget is given."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--no-try", is_flag=True, help="Only say what holds it back.")
@click.option(
    "--budget",
    type=Budget(),
    metavar="TIME",
    help="For all of it, e.g. 10m, or none [default: 5m for trying fixes].",
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
@click.option(
    "--network",
    type=Hosts(),
    is_flag=False,
    flag_value=ALL,
    metavar="[HOST:PORT]",
    help="Let trials reach these machines (HOST:PORT,...) alone; without a value all. Trackers stay offline.",
)
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
    "--scorecard",
    is_flag=True,
    help="Run nothing: say how well gains were predicted, in the run directories given [default: runs].",
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
    scorecard: bool,
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
    options = _Options(**given)
    if scorecard:
        from hotloop.cli.scorecard import show_scorecard

        _refuse_beside("--scorecard", {**given, "level": level, "pid": pid, "seconds": seconds})
        show_scorecard(command, options.json_file)
        return
    if pid is not None:
        from hotloop.cli.live_process import show_live_process

        _refuse_beside("--pid", {**given, "level": level, "COMMAND": command})
        show_live_process(pid, seconds or 20, options.json_file)
    if seconds is not None:
        raise UsageError("--seconds has no effect without --pid", do="leave it out")
    _refuse(options)
    from hotloop.doctor.program import exit_code

    begun, start = _begun(command, options)
    examined = begun if begun is not None else _examined(command, options, start)
    found = _diagnosed(examined, continued=begun is not None)
    why_not = start.why_not if start is not None else None
    if why_not is None and examined.run.ended not in ("by_itself", "enough_steps"):
        why_not = _how_it_ended(examined)
    if why_not is None and examined.run.reads_input:
        why_not = "it reads its standard input, of which a trial gets nothing; let it read a file by its name"
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
        raise click.exceptions.Exit(ExitCode.USAGE)
    raise click.exceptions.Exit(exit_code(examined, level=level))


@dataclass(frozen=True)
class _Options:
    """The options of one call, as they were given."""

    no_try: bool
    budget: float | None
    only: tuple[str, ...]
    in_place: bool
    network: Network | None
    out: Path | None
    steps: int | None
    to_end: bool
    diff: str | None
    apply: bool
    pr: str | None
    json_file: str | None
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


def _begun(command: tuple[str, ...], options: _Options) -> tuple[Examined | None, _Start | None]:
    """The run that an earlier call made, if this one goes on there; else what keeps the files, if fixes are tried."""
    if options.no_try:
        return None, None
    from hotloop.doctor.program import continued, shown

    begun = continued(options.out, command, steps=options.steps, to_end=options.to_end)
    if begun is not None:
        _say(f"continuing in {shown(begun.directory)}: the command has run, fixes are tried on")
        return begun, None
    if options.in_place:
        return None, None
    return None, _Start(options.network or NO_NETWORK, asked=options.asks_for_fixes)


def _diagnosed(examined: Examined, *, continued: bool) -> StoredRun:
    """What was found, told on the terminal and written as a page; raises what refuses a verdict on it."""
    from hotloop.cli.run_page import page_of, text_of
    from hotloop.doctor.program import shown
    from hotloop.report.html import write_html
    from hotloop.runs.stored_run import read_run

    found = read_run(shown(examined.directory), known=examined.run)
    if continued:  # what came of its fixes is told at the end
        found = replace(found, ledger=None)
    # First, whatever the disk says. On stderr: stdout is the command's own, and may be a file or a pipe.
    click.echo(f"\n{text_of(found)}", err=True)
    if examined.refused is not None:
        raise examined.refused
    write_html(examined.directory / "report.html", page_of(found))
    return found


def _treated(
    examined: Examined, found: StoredRun, options: _Options, *, continued: bool
) -> StoredRun:
    """With what came of trying fixes, which takes long, and may be refused or killed."""
    from hotloop.cli.patch_in_hand import hand_over
    from hotloop.cli.run_page import page_of
    from hotloop.doctor.budget import BudgetTooSmall
    from hotloop.report.html import write_html

    file = options.json_file
    # What is known by now is in the file before it.
    # Not where it goes on: the file may lie among those that trials are copies of.
    is_stored = not continued and file is not None and _can_be_replaced(Path(file))
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


def _examined(command: tuple[str, ...], options: _Options, start: _Start | None) -> Examined:
    """The command, run to its end."""
    from hotloop.cli.progress import title_progress
    from hotloop.doctor.program import examine

    with title_progress() as progress:
        before = start.keep if start is not None else lambda directory: None
        return examine(
            command,
            out=options.out,
            steps=options.steps,
            seconds=options.examined_s(),
            before=before,
            progress=progress,
            say=_say,
            warn=_say,
        )


class _Start:
    """Keeps the working directory as it is before the command runs: trials start from that.

    asked: fixes were asked for, so that what makes trying them impossible is an error, said at once.
    """

    def __init__(self, network: Network, *, asked: bool) -> None:
        self._network = network
        self._asked = asked
        self.why_not: str | None = None
        """Why no fix can be tried."""

    def keep(self, directory: Path) -> None:
        from hotloop.doctor.starting_point import keep_start

        try:
            keep_start(directory, Path.cwd(), network=self._network)
        except UsageError as error:
            if self._asked:
                raise
            _say(f"no fix will be tried: {error.what}\n  {error.do}")
            self.why_not = error.what


def _tried(examined: Examined, options: _Options) -> Ledger:
    """What came of trying fixes, said on the terminal."""
    from hotloop.cli.trial_view import trial_view
    from hotloop.doctor.fix_campaign import try_fixes
    from hotloop.report.ledger import render_ledger

    budget_s = options.trials_s()
    with trial_view(budget_s) as view:
        ledger = try_fixes(
            examined,
            budget_s=budget_s,
            only=options.only,
            in_place=options.in_place,
            network=options.network or NO_NETWORK,
            options=options.of_trials(),
            show=view.show,
            warn=lambda text: view.say(f"hotloop: {text}"),
        )
    click.echo(f"\n{render_ledger(ledger)}", err=True)
    return ledger


def object_of(examined: Examined, found: StoredRun) -> dict[str, Any]:
    """The diagnosis as it is stored, with the command, how it ended and what was tried beside it."""
    from hotloop.cli.run_page import answer_of
    from hotloop.core.files import to_plain
    from hotloop.doctor.fix_campaign import with_outcomes

    diagnosis = examined.diagnosis
    if found.ledger is not None:
        diagnosis = with_outcomes(diagnosis, found.ledger)
    return {
        **to_plain(diagnosis),
        "answer": answer_of(found),
        "run": str(examined.directory),
        "doctor": to_plain(examined.run),
        "ranks": None if found.ranks is None else to_plain(found.ranks),
        "notes": list(found.notes),
        "ledger": None if found.ledger is None else to_plain(found.ledger),
    }


def _how_it_ended(examined: Examined) -> str:
    from hotloop.core.command_run import describe_end

    code = examined.run.returncode
    if examined.run.ended == "interrupted" or code is None:
        return "the command was interrupted"
    return f"the command {describe_end(code)}"


def _can_be_replaced(file: Path) -> bool:
    """Not a pipe or a device: those take one object, once."""
    return file.is_file() or not file.exists()


def _store(value: dict[str, Any], file: str) -> None:
    """What says this already stays untouched: trials that go on need the files as they were."""

    try:
        if Path(file).is_file() and json.loads(Path(file).read_text(encoding="utf-8")) == value:
            return
    except (OSError, ValueError):  # something else, to be replaced
        pass
    write_object(value, file)


def _refuse_beside(option: str, given: dict[str, Any]) -> None:
    beside = {name: value for name, value in given.items() if name != "json_file"}
    names = [name for name, value in beside.items() if value not in (None, False, ())]
    if names:
        name = names[0] if names[0].isupper() else "--" + names[0].replace("_", "-")
        raise UsageError(f"{name} has no effect with {option}", do="leave one of them out")


def _refuse(options: _Options) -> None:
    if options.to_end and options.steps is not None:
        raise UsageError("--steps has no effect with --to-end", do="leave one of them out")
    if options.in_place and options.network:
        raise UsageError("--network has no effect with --in-place", do="leave one of them out")
    of_trials = {
        "--budget": options.budget,
        "--only": options.only,
        "--in-place": options.in_place,
        "--network": options.network,
        "--diff": options.diff is not None,
        "--pr": options.pr is not None,
        "--apply": options.apply,
    }
    if options.no_try and (given := [name for name, value in of_trials.items() if value]):
        raise UsageError(f"{given[0]} has no effect with --no-try", do="leave one of them out")
    if options.only:
        from hotloop.doctor.fixes import asked_for

        asked_for(options.only)
    if options.json_file == "-":
        raise UsageError(
            "`--json -` would mix with what the command itself prints",
            do="name a file, or read diagnosis.json in the run directory",
        )
    if options.asks_for_patch:
        from hotloop.cli.patch_in_hand import refuse_target

        for option, name in (("--diff", options.diff), ("--pr", options.pr)):
            if name is not None:
                refuse_target(option, name)
    if options.network is not None:
        from hotloop.doctor.starting_point import refuse_unknown_hosts

        refuse_unknown_hosts(options.network)


def _say(message: str) -> None:
    click.echo(f"hotloop: {message}", err=True)
