"""`hotloop tune CONFIG [KEY=VALUE]...` and `hotloop tune -- COMMAND ...`"""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from hotloop.cli.doctor import Budget, Options, network_option
from hotloop.cli.output import json_option, note, show, write_object
from hotloop.core.connections import NO_NETWORK, Network
from hotloop.core.errors import ExitCode, UsageError
from hotloop.tune.options import CLASSES, Option, options_of

if TYPE_CHECKING:
    from hotloop.core.judgement import Diagnosis
    from hotloop.core.ledger import Ledger
    from hotloop.doctor.program import Examined
    from hotloop.runs.stored_run import StoredRun
    from hotloop.trial.arm import Arm

EXAMINED_S = 30.0
"""Of steps, at most,"""
EXAMINED_STEPS = 24
"""but for so many, below which there is nothing to compare."""
VARY = (
    'An option and its values: "--batch-size=8,16", "--num-workers=0..4", "--n=8..64*2", "--flag" or '
    '"VARIABLE=a,b"; may be given again.'
)
PARITY = f"What an option may change in what is learnt: {', '.join(CLASSES)}."


class AfterConfig(click.Command):
    """Takes options after a CONFIG, and leaves those after a COMMAND to it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = "--" not in args and any(map(is_config, args))
        return super().parse_args(ctx, args)


def is_config(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))


@click.command(cls=AfterConfig)
@click.option("--vary", multiple=True, metavar="NAME=VALUES", help=VARY)
@click.option("--parity", multiple=True, metavar="NAME=CLASS", help=PARITY)
@click.option("--accept", multiple=True, metavar="NAME", help="Keep a value of this option though it changes the training.")  # fmt: skip
@click.option("--accumulate-with", multiple=True, metavar="NAME", help="The option of gradient accumulation: it changes with the batch size that is varied, and a step keeps its samples.")  # fmt: skip
@click.option("--budget", type=Budget(), metavar="TIME", default="10m", show_default=True, help="For all of it.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=1), default=1, metavar="N", help="Of a CONFIG: tune what N processes train together, as torchrun starts them.")  # fmt: skip
@click.option("--force", is_flag=True, help="Measure a CONFIG anew that was tuned before.")
@network_option
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [default: runs/tune-NAME, which goes on]; of a CONFIG the file to write [default: tuned.yaml].")  # fmt: skip
@json_option("Write the ledger to this file.")
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="CONFIG [KEY=VALUE]... | -- COMMAND..."
)
def tune(
    command: tuple[str, ...],
    budget: float,
    ranks: int,
    force: bool,
    network: Network | None,
    out: Path | None,
    json_file: str | None,
    **given: tuple[str, ...],
) -> None:
    """Try other settings of a training, and keep what is proven faster.

    CONFIG is one of `hotloop train`. All that `auto` would choose on this machine is tried as a whole, then single settings on
    top of what is kept; KEY=VALUE stays as it is, and --vary adds settings. What is kept is written into --out with what
    showed it.

    Of a script of your own, values of its options are tried. COMMAND runs once and is examined as by the doctor. Then each
    value is timed against the command as given, in turns, in fresh processes: per sample, where the batch size is varied.
    Losses must stay what they are; options that change the training are shown, and kept where --accept names them. What
    helps is put together option by option, and the final command is confirmed whole on pairs of its own.
    """
    began_at = time.monotonic()
    if not command:
        raise UsageError(
            "nothing to tune was given",
            do="name a config of `hotloop train`, or write a command after `--`: ... -- python train.py",
        )
    if is_config(command[0]):
        from hotloop.cli.tune_config import of_config

        asked = of_config(command, out, given, budget, ranks, force=force)
    elif ranks > 1:
        do = f"write torchrun into the command: ... -- torchrun --nproc-per-node {ranks} train.py"
        raise UsageError("--ranks is of a CONFIG", do=do)
    elif force:
        raise UsageError("--force is of a CONFIG", do="name another directory with --out")
    else:
        asked = _of_command(command, out, given)
    from hotloop.cli.trial_view import trial_view
    from hotloop.report.html import write_html
    from hotloop.report.ledger import render_ledger
    from hotloop.runs.run_page import page_of
    from hotloop.tune import program

    if asked.before is not None:
        return _shown_again(asked, asked.told(asked.before), json_file)
    examined, found = asked.examined(budget, network)
    if asked.earlier is not None:
        asked.earlier.begin(examined.directory)
    words = ((f"--{name.replace('_', '-')}", text) for name, each in given.items() for text in each)
    more = list(itertools.chain.from_iterable(words))
    more += [*Options(network=network).of_trials(), "--out", str(asked.out)]
    budget_s = Options(budget=budget, began_at=began_at).trials_s()
    with trial_view(budget_s) as view:
        ledger = program.tune(
            *(examined, asked.rounds),
            lambda text: examined.run.again(
                [*asked.begins, *more, "--budget", asked.longer(text, budget), *asked.ends]
            ),
            work=asked.work,
            told=asked.told,
            budget_s=budget_s,
            network=network or NO_NETWORK,
            show=view.show,
            warn=lambda text: view.say(f"hotloop: {text}"),
        )
    show(f"\n{render_ledger(ledger)}", err=True)
    write_html(examined.directory / "report.html", page_of(replace(found, ledger=ledger)))
    _write_json(examined.directory, examined.diagnosis, ledger, json_file)
    if asked.earlier is not None:
        asked.earlier.remember(examined.directory, ledger, budget)
    asked.write(ledger)  # last: the place may have become one that cannot be written
    if not any(each.verdict or each.status == "failed" for each in ledger.fixes):
        raise click.exceptions.Exit(ExitCode.INCONCLUSIVE)


def _shown_again(asked: Asked, ledger: Ledger, json_file: str | None) -> None:
    """What an earlier call found of the same work."""
    from hotloop.core.files import read_json
    from hotloop.core.judgement import DIAGNOSIS_FILE, Diagnosis
    from hotloop.report.ledger import render_ledger

    more = " or a longer --budget" if ledger.continue_with is not None else ""
    note(
        f"this work was tuned before, on this machine and with these versions, in {asked.directory}: nothing is measured "
        f"again, unless with --force{more}"
    )
    show(f"\n{render_ledger(ledger)}", err=True)
    if json_file is not None:
        diagnosis = read_json(asked.directory / DIAGNOSIS_FILE, Diagnosis)
        _write_json(asked.directory, diagnosis, ledger, json_file)
    asked.write(ledger)


def _write_json(
    directory: Path, diagnosis: Diagnosis, ledger: Ledger, json_file: str | None
) -> None:
    from hotloop.core.files import to_plain
    from hotloop.doctor.fix_campaign import with_outcomes

    if json_file is not None:
        told = to_plain(with_outcomes(diagnosis, ledger))
        found = {name: told[name] for name in ("trials", "final")}
        write_object({"run": str(directory), **found, **to_plain(ledger)}, json_file)


class Remembers(Protocol):
    """`tune.earlier`, which needs the trainer's data."""

    def begin(self, directory: Path) -> None: ...

    def remember(self, directory: Path, ledger: Ledger, budget_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What is tuned."""

    command: tuple[str, ...]
    directory: Path
    rounds: Sequence[Sequence[Option]]
    out: Path
    """As `--out` has it."""
    begins: Sequence[str] = ("hotloop", "tune")
    ends: Sequence[str] = ()
    """Words of the command that goes on, beside its options."""
    work: Callable[[Arm], Arm] | None = None
    told: Callable[[Ledger], Ledger] = lambda ledger: ledger
    """Makes the ledger what is stored and shown."""
    write: Callable[[Ledger], None] = lambda ledger: None
    """Writes what was kept where the user wants it."""
    written: Path | None = None
    """What the command writes and nobody wants."""
    prepare: Callable[[], None] = lambda: None
    """Does what the command would do once for all calls of it."""
    earlier: Remembers | None = None
    """Where what comes of it is kept for other configs."""
    before: Ledger | None = None
    """What came of the same work, in `directory`."""

    def longer(self, budget: str, before_s: float) -> str:
        """The `--budget` of the command that goes on. The `before_s` seconds of this call, or fewer, would only answer a config."""
        from hotloop.doctor.trial_costs import budget_of, budget_text

        if self.earlier is None or budget_of(budget) > before_s:
            return budget
        return budget_text(before_s + 60)

    def examined(self, budget_s: float, network: Network | None) -> tuple[Examined, StoredRun]:
        """What an examination finds, or found in an earlier call. Ends the command where nothing can be tried."""
        from hotloop.cli.doctor_session import diagnosed, examined_command, reason_not_tried
        from hotloop.doctor.program import continued, exit_code

        self.prepare()
        if (examined := continued(self.directory, self.command, steps=None)) is None:
            # A quarter of the doctor's budget is for steps of the examination.
            budget_s = min(budget_s / 2, 4 * EXAMINED_S)
            how = Options(budget=budget_s, network=network, out=self.directory)
            self._remove()
            try:
                examined, _ = examined_command(self.command, how, whole="", at_least=EXAMINED_STEPS)
            finally:
                self._remove()
        found = diagnosed(examined, continued=True)
        if (why := reason_not_tried(examined)) is not None:
            note(f"nothing was tried: {why}")
            raise click.exceptions.Exit(exit_code(examined, level=None))
        return examined, found

    def _remove(self) -> None:
        if self.written is not None:
            shutil.rmtree(self.written, ignore_errors=True)


Given = Mapping[str, tuple[str, ...]]
"""By option, what was given to it."""


def _of_command(command: tuple[str, ...], out: Path | None, given: Given) -> Asked:
    options = [_with_class(each) for each in options_of(**given, command=command)]
    from hotloop.doctor.command import script_name
    from hotloop.tune.program import run_directory

    directory = out or run_directory(command, script_name(command), note)
    return Asked(command, directory, [options], directory, ends=["--", *command])


def _with_class(option: Option) -> Option:
    """With what it may change: asked for on a terminal where its name does not tell, else the most."""
    if option.parity_class is not None:
        return option
    told = CLASSES[-1]
    if sys.stdin.isatty() and sys.stderr.isatty():
        text = f"What may {option.name} change in what is learnt?"
        told = click.prompt(text, type=click.Choice(CLASSES), default=told, err=True)
    else:
        note(f"{option.name} may change the training, unless --parity {option.key}=CLASS says less")
    return replace(option, parity_class=told, is_told=True)
