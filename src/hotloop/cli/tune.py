"""`hotloop tune -- COMMAND ...`"""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import click

from hotloop.cli.doctor import Budget, Options, network_option
from hotloop.cli.output import json_option, note, show, write_object
from hotloop.core.connections import NO_NETWORK, Network
from hotloop.core.errors import ExitCode, UsageError
from hotloop.tune.options import CLASSES, Option, options_of

EXAMINED_S = 30.0
"""Of steps, at most."""
VARY = (
    'An option and its values: "--batch-size=8,16", "--num-workers=0..4", "--n=8..64*2", "--flag" or '
    '"VARIABLE=a,b"; may be given again.'
)
PARITY = f"What an option may change in what is learnt: {', '.join(CLASSES)}."


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--vary", multiple=True, metavar="NAME=VALUES", help=VARY)
@click.option("--parity", multiple=True, metavar="NAME=CLASS", help=PARITY)
@click.option("--accept", multiple=True, metavar="NAME", help="Keep a value of this option though it changes the training.")  # fmt: skip
@click.option("--budget", type=Budget(), metavar="TIME", default="10m", show_default=True, help="For all of it.")  # fmt: skip
@network_option
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [default: runs/tune-NAME, which goes on].")  # fmt: skip
@json_option("Write the ledger to this file.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def tune(
    command: tuple[str, ...],
    budget: float,
    network: Network | None,
    out: Path | None,
    json_file: str | None,
    **given: tuple[str, ...],
) -> None:
    """Try other values of a training script's own options, and keep what is proven faster.

    COMMAND runs once and is examined as by the doctor. Then each value is timed against the command as given, in turns,
    in fresh processes: per sample, where the batch size is varied. Losses must stay what they are; options that change
    the training are shown, and kept where --accept names them. What helps is put together option by option, and the
    final command is confirmed whole on pairs of its own.
    """
    began_at = time.monotonic()
    if not command:
        raise UsageError("no command was given", do="write it after `--`: ... -- python train.py")
    options = [_with_class(each) for each in options_of(**given, command=command)]
    from hotloop.cli.doctor_session import diagnosed, examined_command, reason_not_tried
    from hotloop.cli.run_page import page_of
    from hotloop.cli.trial_view import trial_view
    from hotloop.core.files import to_plain
    from hotloop.doctor.program import continued, exit_code
    from hotloop.report.html import write_html
    from hotloop.report.ledger import render_ledger
    from hotloop.tune import program

    out = out or program.run_directory(command)
    if (examined := continued(out, command, steps=None)) is None:
        # A quarter of the doctor's budget is for steps of the examination.
        how = Options(budget=min(budget / 2, 4 * EXAMINED_S), network=network, out=out)
        examined, _ = examined_command(command, how, whole="")
    found = diagnosed(examined, continued=True)
    if (why := reason_not_tried(examined)) is not None:
        note(f"nothing was tried: {why}")
        raise click.exceptions.Exit(exit_code(examined, level=None))
    words = [word for name, each in given.items() for text in each for word in (f"--{name}", text)]
    words += [*Options(network=network).of_trials(), "--out", str(out), "--budget"]
    budget_s = Options(budget=budget, began_at=began_at).trials_s()
    with trial_view(budget_s) as view:
        ledger = program.tune(
            *(examined, options),
            lambda budget: shlex.join(["hotloop", "tune", *words, budget, "--", *command]),
            budget_s=budget_s,
            network=network or NO_NETWORK,
            show=view.show,
            warn=lambda text: view.say(f"hotloop: {text}"),
        )
    show(f"\n{render_ledger(ledger)}", err=True)
    write_html(examined.directory / "report.html", page_of(replace(found, ledger=ledger)))
    if json_file is not None:
        write_object({"run": str(examined.directory), **to_plain(ledger)}, json_file)
    if not any(each.verdict or each.status == "failed" for each in ledger.fixes):
        raise click.exceptions.Exit(ExitCode.INCONCLUSIVE)


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
