"""`hotloop tune -- COMMAND ...`: its options, what is asked on a terminal, what is shown."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import click

from hotloop.cli.doctor import ALL, Budget, Hosts, Options
from hotloop.cli.output import json_option, note, show, write_object
from hotloop.core.connections import NO_NETWORK, Network
from hotloop.core.errors import ExitCode, UsageError
from hotloop.tune.options import CLASSES, Option, options_of

EXAMINED_S = 20.0


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    *("--vary", "vary"),
    multiple=True,
    metavar="NAME=VALUES",
    help='An option and its values: "--batch-size=8,16", "--num-workers=0..4", "--n=8..64*2", "--flag" or "VARIABLE=a,b"; '
    "may be given again.",
)
@click.option(
    *("--parity", "parity"),
    multiple=True,
    metavar="NAME=CLASS",
    help="What an option may change in what is learnt: bitwise, reduction_order, reduced_precision or changes_training.",
)
@click.option(
    *("--accept", "accept"),
    multiple=True,
    metavar="NAME",
    help="Keep this option's fastest value though it changes the training.",
)
@click.option(
    "--budget",
    type=Budget(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="For all of it.",
)
@click.option(
    "--network",
    type=Hosts(),
    is_flag=False,
    flag_value=ALL,
    metavar="[HOST:PORT]",
    help="Let trials reach these machines (HOST:PORT,...) alone; without a value all.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Run directory [default: runs/tune-NAME; there the same command goes on].",
)
@json_option("Write the ledger to this file.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def tune(
    command: tuple[str, ...],
    vary: tuple[str, ...],
    parity: tuple[str, ...],
    accept: tuple[str, ...],
    budget: float,
    network: Network | None,
    out: Path | None,
    json_file: str | None,
) -> None:
    """Try other values of a training script's own options, and keep what is proven faster.

    COMMAND runs once and is examined as by the doctor. Then each value is timed against the command as given, in turns,
    in fresh processes; where the batch size is varied, per sample. Losses must stay what they are, but for options that
    change the training: those are shown, and kept where --accept names them. What helps is put together option by
    option, and the final command is confirmed whole on pairs of its own.
    """
    began_at = time.monotonic()
    if not command:
        raise UsageError(
            "no command was given",
            do='write it after `--`: hotloop tune --vary "--num-workers=0..4" -- python train.py',
        )
    if json_file == "-":
        raise UsageError("`--json -` would mix with what the command prints", do="name a file")
    options = [_with_class(each) for each in options_of(vary, parity, accept, command)]
    from hotloop.cli.doctor_session import diagnosed, examined_command, reason_not_tried
    from hotloop.cli.run_page import page_of
    from hotloop.cli.trial_view import trial_view
    from hotloop.core.files import to_plain
    from hotloop.doctor.program import continued, exit_code, shown
    from hotloop.report.html import write_html
    from hotloop.report.ledger import render_ledger
    from hotloop.tune import program

    out = out or program.run_directory(command)
    # A quarter of an examination's budget is its steps.
    how = Options(
        False,
        min(budget / 2, 4 * EXAMINED_S),
        (),
        False,
        network,
        out,
        None,
        False,
        None,
        False,
        None,
        None,
    )
    begun = continued(out, command, steps=None)
    if begun is not None:
        note(f"continuing in {shown(begun.directory)}: the command is not examined again")
    examined = begun or examined_command(command, how, whole="")[0]
    found = diagnosed(examined, continued=begun is not None)
    if (why := reason_not_tried(examined)) is not None:
        note(f"nothing was tried: {why}")
        raise click.exceptions.Exit(exit_code(examined, level=None))

    def again(budget_text: str) -> str:
        given = {"--vary": vary, "--parity": parity, "--accept": accept}
        words = [f"{name}={text}" for name, texts in given.items() for text in texts]
        place = ["--out", str(shown(examined.directory)), "--budget", budget_text]
        return shlex.join(["hotloop", "tune", *words, *place, "--", *command])

    budget_s = budget - (time.monotonic() - began_at)
    with trial_view(budget_s) as view:
        ledger = program.tune(
            examined,
            options,
            budget_s=budget_s,
            network=network or NO_NETWORK,
            again=again,
            show=view.show,
            warn=lambda text: view.say(f"hotloop: {text}"),
        )
    show(f"\n{render_ledger(ledger)}", err=True)
    write_html(examined.directory / "report.html", page_of(replace(found, ledger=ledger)))
    if json_file is not None:
        write_object({"run": str(examined.directory), **to_plain(ledger)}, json_file)
    decided = any(
        each.status not in ("not_tried", "failed") or each.verdict for each in ledger.fixes
    )
    raise click.exceptions.Exit(ExitCode.FINE if decided else ExitCode.INCONCLUSIVE)


def _with_class(option: Option) -> Option:
    """With what it may change: asked for on a terminal where its name does not tell, else the most."""
    if option.parity_class is not None:
        return option
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        note(
            f"{option.name} is taken to change the training; --parity {option.key}=CLASS says otherwise"
        )
        return replace(option, parity_class="changes_training")
    told = click.prompt(
        f"What may {option.name} change in what is learnt?",
        type=click.Choice(CLASSES),
        default="changes_training",
        err=True,
    )
    return replace(option, parity_class=told, is_told=True)
