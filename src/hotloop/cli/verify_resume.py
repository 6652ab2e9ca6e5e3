"""`hotloop verify-resume RUN|CONFIG`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hotloop.cli.output import json_option, write_object
from hotloop.core.errors import ExitCode

if TYPE_CHECKING:
    from hotloop.resume.program import Resumed


@click.command("verify-resume")
@click.argument("run", metavar="RUN|CONFIG", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--kills", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--steps", type=click.IntRange(min=4), help="Of the short run. [default: up to 60]")
@click.option("--seed", default=0, show_default=True, help="Of the moments of the kills.")
@click.option(
    *("--ranks", "ranks"),
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Also continue a killed run with N processes.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Where it trains [default: in runs/].")
@click.option("--keep", is_flag=True, help="Keep what was trained and compared.")
@json_option("Write what was found; `-` for stdout.")
def verify_resume(run: Path, json_file: str | None, **options: Any) -> None:
    """Prove that a run resumes exactly: train it without interruption, and again with kills.

    Takes the settings of a CONFIG file, or of a run directory, which stays untouched; trains a short run of
    its own, kills it with SIGKILL at random moments, also in the middle of saves, and runs the same command
    again each time. Then samples, losses, gradient norms, weights, optimizer and random states are compared
    bit by bit. Exits 0 when all are the same, 1 when not, 3 when the training differs without any kill, too.
    """
    from hotloop.cli.output import note
    from hotloop.cli.progress import progress_bar
    from hotloop.core.files import to_plain
    from hotloop.resume import program

    with progress_bar() as progress:
        found = program.verify_resume(run, **options, progress=progress, warn=note)
    if json_file is not None:
        write_object(to_plain(found), json_file)
    if json_file != "-":
        click.echo("\n".join(_lines(found)))
    other = found.other_topology
    if found.reproducible is False:
        raise click.exceptions.Exit(ExitCode.INCONCLUSIVE)
    if found.differences or (other and not (other.samples_identical and other.close is not False)):
        raise click.exceptions.Exit(ExitCode.FOUND)


def _lines(found: Resumed) -> list[str]:
    """The verdict in words."""
    from hotloop.report.numbers import counted, listed

    names = {"save": "while saving", "step": "in a step", "start": "before a first step"}
    moments = [f"{count} {names[each]}" for each, count in found.kills_by_moment.items()]
    after = f"after {counted(found.kills, 'kill')} ({listed(moments or ['none'])})"
    if found.bit_identical:
        said = [f"Resume is exact: {after} everything is the same to the bit."]
    elif found.reproducible is False:
        said = [
            "Resume cannot be judged: without any kill, too, this training differs from itself."
        ]
    else:
        said = [
            f"Resume is NOT exact: {after} the first difference is the {found.differences[0].what}."
        ]
    for each in found.differences:
        where = "final state" if each.step is None else f"step {each.step}"
        said.append(f"  {where}: {each.what}: {each.detail}")
    amounts = listed([f"{count:,} {what}" for what, count in found.compared.items()])
    said += [
        f"compared: {amounts}, those of steps made twice included, and the final state",
        f"lost: {counted(found.steps_lost_max, 'step')} per kill at most, {found.steps_lost_mean:.1f} on "
        f"average; checkpoints are {found.every_steps} apart",
    ]
    if (other := found.other_topology) is not None:
        close = {True: "close", False: "NOT CLOSE", None: "apart, as dropout makes them"}
        order = "the same samples in the same order" if other.samples_identical else "OTHER SAMPLES"
        said.append(
            f"{other.ranks} processes from step {other.from_step} on: {order}; weights "
            f"{close[other.close]} ({other.weight_difference:.1e} of the largest)"
        )
    return said + ([f"kept in {found.kept}"] if found.kept else [])
